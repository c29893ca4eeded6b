"""WebDataset: tar files. Members with one key are a sample: its files, and its row as JSON."""

import re
import tarfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from batchmill.exporting.formats import ShardContent
from batchmill.storage.fingerprints import HashingFile

_ROW = "json"
# For samples whose own file is JSON. The library decodes by the last part.
_OTHER_ROW = "row.json"


class WebDataset:
    """Writes tar files with the standard library. The same samples give the same bytes."""

    tag = "webdataset 1"
    split = "data"

    def shard_name(self, split: str, number: int, count: int) -> str:  # noqa: ARG002
        """Return SPLIT-000000.tar."""
        return f"{split}-{number:06d}.tar"

    def write(self, file: HashingFile, content: ShardContent) -> None:
        """Write a shard, one write per sample."""
        size = 0
        samples = zip(content.keys, content.files, content.texts, content.read(), strict=True)
        for key, files, text, contents in samples:
            members = [
                _member(".".join(filter(None, [key, _part(one.column), one.suffix])), data)
                for one, data in zip(files, contents, strict=True)
            ]
            row = _OTHER_ROW if files[0].suffix == _ROW else _ROW
            size += file.write(b"".join([*members, _member(f"{key}.{row}", text)]))
        # Two empty blocks end an archive. Its size is a multiple of RECORDSIZE.
        end = 2 * tarfile.BLOCKSIZE
        file.write(b"\0" * (end + -(size + end) % tarfile.RECORDSIZE))

    def payloads(self, path: Path) -> Iterator[bytes]:
        """Yield the contents of the members of each key, without the last one, its row."""
        with tarfile.open(path, "r:") as archive:
            for _, members in groupby(archive, lambda member: member.name.partition(".")[0]):
                contents = [archive.extractfile(member) for member in members]
                yield b"".join(opened.read() for opened in contents[:-1] if opened)


def _part(column: str) -> str:
    """Return a column as a part of a member's name: the library splits names at dots."""
    return re.sub(r"[^A-Za-z0-9_]", "_", column)


def _member(name: str, data: bytes) -> bytes:
    """Return a member of an archive: its header, its content, and zeros to a full block."""
    header = tarfile.TarInfo(name)  # Its time is 0.
    header.size = len(data)
    return header.tobuf(tarfile.GNU_FORMAT) + data + b"\0" * (-len(data) % tarfile.BLOCKSIZE)
