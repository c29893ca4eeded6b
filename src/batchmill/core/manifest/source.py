"""The result of reading a manifest, before its inputs are checked."""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cached_property
from typing import Literal

import pandas as pd
import pyarrow as pa

from batchmill.core.storage.remote import FileStat

ManifestLike = str | os.PathLike[str] | Sequence[str] | pd.DataFrame


@dataclass(kw_only=True)
class Source:
    """A manifest as its reader returns it.

    Attributes:
        name: The manifest's path or URL, for messages.
        frame: One row per input.
        folder: The folder or URL that relative inputs are relative to.
        form: "text" if all values are text, "typed" if they have types, "listing" for a listing of
            files, "dataset" for the outputs of a dataset.
        locate: Returns the place of each row, such as "line 7" or "row 7". It may read the manifest
            a second time, so it is called only for a manifest with faults.
        faults: Faults that the reader found.
        version: The number of the version, if the form is a dataset. 0 if it has none.
        seen: The known entries of files, by name: of the outputs of a dataset that are in packs.
        files: The known entry of each row, with the columns of FOUND: of the objects of a listing.
    """

    name: str
    frame: pd.DataFrame
    folder: str
    form: Literal["text", "typed", "listing", "dataset"]
    locate: Callable[[], Sequence[str]]
    faults: list[str] = field(default_factory=list)
    version: int = 0
    seen: Mapping[str, FileStat] = field(default_factory=dict)
    files: pa.Table | None = None

    @cached_property
    def places(self) -> Sequence[str]:
        """The place of each row of `frame`, such as "line 7"."""
        return self.locate()


def fits(name: str, pattern: str) -> bool:
    """Return whether a file's relative path or its name matches one of several patterns.

    >>> fits("a/b.wav", "*.flac, *.wav")
    True
    """
    if pattern == "*":
        return True  # The usual case, which is called for each of millions of names.
    last = name.rpartition("/")[2]
    patterns = map(str.strip, pattern.split(","))
    return any(fnmatch(name, one) or fnmatch(last, one) for one in patterns)


def numbered(word: str, count: int, first: int = 1) -> Callable[[], list[str]]:
    """Return a `locate` function for a form without lines: "row 1", "row 2" and so on."""
    return lambda: [f"{word} {number}" for number in range(first, first + count)]


def duplicate_column_faults(names: Sequence[str], place: str = "") -> list[str]:
    """Return a fault for each column name that occurs more than once.

    Args:
        names: The column names.
        place: The place of the names, such as "line 1".

    Returns:
        The faults, sorted by column name.
    """
    prefix = f"{place}: " if place else ""
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    return [f"{prefix}duplicate column {name!r}. Rename one." for name in repeated]
