"""The work as batchmill's steps: functions of a file and a folder for what they write."""

from pathlib import Path

from benchmarks.peers import work
from benchmarks.peers.work import Row, clips, spectrograms

__all__ = ["clips", "spectrograms", "words"]


def words(source: Path) -> list[Row]:
    """Return a row with a word and a few pieces of it: a step that writes nothing has no `out`."""
    return work.words(source, source.parent)
