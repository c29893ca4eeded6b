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


class Numbered(Sequence[str]):
    """`row 1`, `row 2`, ... without a list of them."""

    def __init__(self, word: str, length: int, first: int = 1) -> None:
        self._word, self._length, self._first = word, length, first

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return f"{self._word} {index + self._first}"
