"""What the readers of every form of manifest hand over."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd


@dataclass(kw_only=True)
class Source:
    """A manifest as it was read, before its inputs are checked.

    `frame` has one row an input. `locate` gives the place of each row in the words of its form
    ("line 7", "row 7"); it is a function because it costs a second reading, which only a manifest
    with faults needs. `faults` are those that the reader itself has found.
    """

    name: str
    frame: pd.DataFrame
    folder: Path
    locate: Callable[[], Sequence[str]]
    faults: list[str] = field(default_factory=list)

    @cached_property
    def places(self) -> Sequence[str]:
        """The place of each row of `frame`."""
        return self.locate()


def numbered(word: str, count: int, first: int = 1) -> Callable[[], list[str]]:
    """Return what locates the rows of a form without lines: "row 1", "row 2", ...."""
    return lambda: [f"{word} {number}" for number in range(first, first + count)]
