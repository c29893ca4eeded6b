"""What the readers of every form of manifest hand over."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cached_property
from typing import Literal

import pandas as pd

from batchmill.storage.remote import FileStat


@dataclass(kw_only=True)
class Source:
    """A manifest as it was read, before its inputs are checked.

    `frame` has one row an input. `locate` gives the place of each row in the words of its form
    ("line 7", "row 7"); it is a function because it costs a second reading, which only a manifest
    with faults needs. `faults` are those that the reader itself has found. `folder` is the
    folder or URL that relative inputs are relative to. `form` is "text" where all values are text,
    "typed" where they have types, "listing" for what lists files, "dataset" for the outputs of one.
    A listing of a store comes with what the store said of each: `seen`.
    """

    name: str
    frame: pd.DataFrame
    folder: str
    form: Literal["text", "typed", "listing", "dataset"]
    locate: Callable[[], Sequence[str]]
    faults: list[str] = field(default_factory=list)
    seen: Mapping[str, FileStat] = field(default_factory=dict)

    @cached_property
    def places(self) -> Sequence[str]:
        """The place of each row of `frame`."""
        return self.locate()


def fits(name: str, pattern: str) -> bool:
    """Tell whether a file's relative path or its name fits a pattern."""
    return fnmatch(name, pattern) or fnmatch(name.rpartition("/")[2], pattern)


def numbered(word: str, count: int, first: int = 1) -> Callable[[], list[str]]:
    """Return what locates the rows of a form without lines: "row 1", "row 2", ...."""
    return lambda: [f"{word} {number}" for number in range(first, first + count)]
