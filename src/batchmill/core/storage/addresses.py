"""The addresses of files in packs, and reading these files.

A pack is a tar file that holds the outputs of many inputs, because a small file costs a disk far
more than its bytes. The members of a pack have the names that the files would have without packs.
The address of a member, `packs/PACK.tar/OFFSET-SIZE/NAME`, leads to its bytes without the headers.

A pack of which little is still used is written again without the rest. The records keep the
addresses in the old pack, so a list beside the packs leads from there to the new one.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from batchmill.core.layout import PACKS
from batchmill.errors import StoreError

if TYPE_CHECKING:
    from batchmill.core.storage.store import Store

# The size of a tar header. Each member begins at a multiple of it.
BLOCK = 512
_ADDRESS = re.compile(rf"({PACKS}/[^/]+\.tar)/(\d+)-(\d+)/([^/]+)", re.DOTALL)


class Address(NamedTuple):
    """The place of a file in a pack: the pack's name, the offset and the size in bytes."""

    pack: str
    offset: int
    size: int

    @property
    def end(self) -> int:
        """The offset where the next member begins.

        >>> Address("packs/000001-3f-0.tar", 512, 20).end
        1024
        """
        return self.offset + -(-self.size // BLOCK) * BLOCK

    def named(self, name: str) -> str:
        """Return the address as text. It ends with the last part of the file's `name`.

        >>> Address("packs/000001-3f-0.tar", 512, 20).named("files/a-1.7cd8/clip.wav")
        'packs/000001-3f-0.tar/512-20/clip.wav'
        """
        return f"{self.pack}/{self.offset}-{self.size}/{name.rpartition('/')[2]}"


def parse_address(name: str) -> Address | None:
    """Return the place that an address describes; None for the name of a file outside packs.

    >>> parse_address("packs/000001-3f-0.tar/512-20/clip.wav")
    Address(pack='packs/000001-3f-0.tar', offset=512, size=20)
    """
    if not name.startswith(f"{PACKS}/"):
        return None
    match = _ADDRESS.fullmatch(name)
    return Address(match[1], int(match[2]), int(match[3])) if match else None


def list_of_moved(pack: str) -> str:
    """Return the name of the list of files that were moved out of a pack.

    >>> list_of_moved("packs/000001-3f-0.tar")
    'packs/000001-3f-0.moved.json'
    """
    return f"{pack.removesuffix('.tar')}.moved.json"


def encode_moved(moved: Mapping[int, Address]) -> bytes:
    """Return a list of moved files as bytes: for each old offset, where the file is now."""
    return json.dumps({offset: (now.pack, now.offset) for offset, now in moved.items()}).encode()


def _decode_moved(data: bytes) -> dict[str, tuple[str, int]]:
    """Return a list of moved files. A damaged list is empty, so that its files count as missing."""
    try:
        return {offset: (str(pack), int(at)) for offset, (pack, at) in json.loads(data).items()}
    except (ValueError, TypeError, AttributeError):
        return {}


class PackedFiles:
    """The files in the packs of one store.

    Args:
        store: The store.
    """

    def __init__(self, store: "Store") -> None:
        self._store = store
        self._moved: dict[str, dict[str, tuple[str, int]]] = {}

    def read(self, place: Address) -> bytes:
        """Return the content of a file. Raises StoreError."""
        try:
            content = self._store.read_range(*place)
        except StoreError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            now = self.find(place, {})
            if now is None:
                raise
            content = self._store.read_range(*now)
        if len(content) != place.size:
            raise StoreError(
                place.pack, "is shorter than the ledger says. Check it with batchmill verify."
            )
        return content

    def sizes(self, places: Iterable[Address]) -> list[int | None]:
        """Return the size of each file in bytes, None for a file that does not exist."""
        places = list(places)
        lengths = self._lengths({place.pack for place in places})
        now = [
            place if lengths[place.pack] is not None else self.find(place, lengths)
            for place in places
        ]
        return [
            place.size if place and place.end <= (lengths[place.pack] or 0) else None
            for place in now
        ]

    def find(self, place: Address, lengths: dict[str, int | None]) -> Address | None:
        """Return where a file is whose pack does not exist; None if it is nowhere.

        Args:
            place: The address of the file.
            lengths: The known sizes of packs, None for one that does not exist. Others are added.
        """
        for _ in range(2):
            moved = self._moved.get(place.pack)
            if moved is None:
                try:
                    moved = _decode_moved(self._store.read(list_of_moved(place.pack)))
                except StoreError:
                    return None
                self._moved[place.pack] = moved
            place_now = moved.get(str(place.offset))
            if place_now and place_now[0] not in lengths:
                lengths |= self._lengths({place_now[0]})
            if place_now and lengths[place_now[0]] is not None:
                return Address(place_now[0], place_now[1], place.size)
            # A run has written the new pack again, too. Another thread may have seen it already.
            self._moved.pop(place.pack, None)
        return None

    def _lengths(self, packs: Iterable[str]) -> dict[str, int | None]:
        names = sorted(packs)
        return dict(zip(names, self._store.file_sizes(names), strict=True))
