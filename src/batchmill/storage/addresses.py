"""The addresses of files in packs.

A pack is a tar file that holds the outputs of many inputs, because a small file costs a disk far
more than its bytes. The members of a pack have the names that the files would have without packs.
The address of a member, `packs/PACK.tar/OFFSET-SIZE/NAME`, leads to its bytes without the headers.
"""

import re
from typing import NamedTuple

from batchmill.layout import PACKS

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
