"""Appends the outputs of a step to packs."""

import os
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from mmap import mmap
from pathlib import Path
from struct import Struct

from batchmill.core.layout import PACKS
from batchmill.core.storage.addresses import BLOCK, Address
from batchmill.core.storage.contained_paths import closing
from batchmill.core.storage.retries import retry_local
from batchmill.core.storage.store_errors import store_fault

# The number of the current pack of a writer, and its end in bytes.
_STATE = Struct("<QQ")
_COPY_BYTES = 2**20
_NEW = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass
class PackWriter:
    """Appends files to packs. Each process that calls `add` writes to packs of its own.

    The state of a writer is shared memory. So a process that takes the place of a killed one
    continues its pack after the last complete output.

    Args:
        folder: The folder of the packs.
        states: A folder for the states, which only this attempt uses.
        prefix: The beginning of the names of the packs. No other attempt uses it.
        limit: The size in bytes after which a new pack begins.
        worker: Returns the name of this process's worker. No other living process has it.
    """

    folder: Path
    states: Path
    prefix: str
    limit: int
    worker: Callable[[], str]
    _pid: int = field(default=0, init=False)

    @retry_local
    def add(self, files: Path, members: Mapping[str, str]) -> dict[str, Address]:
        """Append files to the current pack.

        Args:
            files: The folder of the files.
            members: The name in the pack of each file, by its path in the folder.

        Returns:
            The place of each file, by its path in the folder.

        Raises:
            StoreError: A file cannot be read, or the pack cannot be written.
        """
        try:
            if self._pid != os.getpid():
                self._begin()
            number, end = _STATE.unpack_from(self._state)
            if end >= self.limit:
                number, end = number + 1, 0
            name = f"{self._start}-{number}.tar"
            with closing(os.open(self.folder / name, _NEW, 0o666)) as pack:
                places = {}
                # A killed process, or a write that failed, may have left a part of a file there.
                if os.fstat(pack).st_size != end:
                    os.ftruncate(pack, end)
                for file, member in members.items():
                    place = Address(f"{PACKS}/{name}", *_append(pack, end, files / file, member))
                    places[file], end = place, place.end
            _STATE.pack_into(self._state, 0, number, end)
        except OSError as error:
            raise store_fault(str(self.folder), error) from error
        return places

    def _begin(self) -> None:
        """Map the state of this process's worker into memory."""
        worker = self.worker()
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        with closing(os.open(self.states / f"pack-{worker}", flags)) as state:
            os.ftruncate(state, _STATE.size)
            self._state = mmap(state, _STATE.size)
        self._start = f"{self.prefix}-{worker}"
        self._pid = os.getpid()


def encode_member(name: str, content: bytes) -> tuple[int, bytes]:
    """Return the size of a member's header, and the bytes of the whole member.

    Args:
        name: The name of the file in the pack.
        content: The content of the file.
    """
    header = _header(name, len(content))
    return len(header), header + content + bytes(-len(content) % BLOCK)


def _append(pack: int, end: int, path: Path, name: str) -> tuple[int, int]:
    """Write a member at the end of a pack. Return the offset and the size of its content."""
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        header = _header(name, size)
        offset = end + len(header)
        data = file.read(min(size, _COPY_BYTES))
        if len(data) == size:
            _write(pack, header + data + bytes(-size % BLOCK), end)
            return offset, size
        _write(pack, header + data, end)
        place = offset + len(data)
        while data := file.read(_COPY_BYTES):
            _write(pack, data, place)
            place += len(data)
        _write(pack, bytes(-size % BLOCK), place)
    return offset, place - offset


def _write(pack: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while len(view):
        written = os.pwrite(pack, view, offset)
        view, offset = view[written:], offset + written


def _header(name: str, size: int) -> bytes:
    """Return the tar header of a member."""
    encoded = name.encode()
    if len(encoded) > _LONGEST or size >= 8**11:
        info = tarfile.TarInfo(name)
        info.size = size
        return info.tobuf(tarfile.GNU_FORMAT)
    # `TarInfo.tobuf` takes as long as everything else that is done for a small file.
    header = bytearray(_TEMPLATE)
    header[: len(encoded)] = encoded
    header[124:135] = b"%011o" % size
    header[148:155] = b"%06o\0" % sum(header)
    return bytes(header)


_LONGEST = 100
# The header of an empty file without a name. The checksum counts its own bytes as spaces.
_TEMPLATE = bytearray(tarfile.TarInfo().tobuf(tarfile.GNU_FORMAT))
_TEMPLATE[148:156] = b" " * 8
