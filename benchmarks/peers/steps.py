"""The work as steps of batchmill."""

from pathlib import Path

from benchmarks.peers import work
from benchmarks.peers.work import Row, clips, spectrograms

__all__ = ["clips", "spectrograms", "words"]


def words(source: Path) -> list[Row]:
    """Return a row with a word and parts of it. A step that writes nothing has no `out`."""
    return work.words(source, source.parent)
