"""Uploads the packs of an attempt to a bucket: at each commit, what its outcomes name."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from batchmill.layout import PACKS
from batchmill.outcome import Outcome, WrittenFile
from batchmill.storage import Store
from batchmill.storage.addresses import Address, parse_address


class _Piece(NamedTuple):
    """A part of a local pack that was uploaded: its range, and where it is now."""

    start: int
    end: int
    pack: str
    offset: int


class PackUpload:
    """Uploads packs, because nothing can be appended to an object of a bucket.

    The packs of all workers of a shard become one object for each commit.

    Args:
        store: The store of the dataset.
        folder: The local folder of the packs.
        prefix: The beginning of the names of the packs.
        limit: The size at which a worker begins its next local pack.
    """

    def __init__(self, store: Store, folder: Path, prefix: str, limit: int) -> None:
        self._store = store
        self._folder = folder
        self._prefix = prefix
        self._limit = limit
        self._pieces: dict[str, list[_Piece]] = {}
        self._count = 0

    def store(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Upload the outputs of outcomes that are in packs.

        Args:
            outcomes: The outcomes, with addresses in local packs.

        Returns:
            The outcomes, with addresses in the store.

        Raises:
            StoreError: The upload failed.
        """
        ends: dict[str, int] = {}
        for outcome in outcomes:
            for file in outcome.outputs:
                place = parse_address(file.pack or "")
                if place:
                    ends[place.pack] = max(place.end, ends.get(place.pack, 0))
        self._upload({pack: end for pack, end in ends.items() if end > self._end(pack)})
        return [
            outcome._replace(outputs=tuple(map(self._moved, outcome.outputs)))
            for outcome in outcomes
        ]

    def _upload(self, ends: dict[str, int]) -> None:
        if not ends:
            return
        name = f"{PACKS}/{self._prefix}-{self._count:05d}.tar"
        self._count += 1
        data = bytearray()
        pieces = {}
        for pack, end in ends.items():
            start = self._end(pack)
            pieces[pack] = _Piece(start, end, name, len(data))
            with self._path(pack).open("rb") as file:
                file.seek(start)
                data += file.read(end - start)
        self._store.write(name, bytes(data))
        for pack, piece in pieces.items():
            self._pieces.setdefault(pack, []).append(piece)
            if piece.end >= self._limit:
                self._path(pack).unlink()

    def _end(self, pack: str) -> int:
        pieces = self._pieces.get(pack)
        return pieces[-1].end if pieces else 0

    def _path(self, pack: str) -> Path:
        return self._folder / pack.removeprefix(f"{PACKS}/")

    def _moved(self, file: WrittenFile) -> WrittenFile:
        place = parse_address(file.pack or "")
        if not place:
            return file
        # The header of the file lies before it, so an empty file ends where its piece ends.
        piece = next(p for p in self._pieces[place.pack] if p.start < place.offset <= p.end)
        moved = Address(piece.pack, place.offset - piece.start + piece.offset, place.size)
        return file._replace(pack=moved.named(file.path))
