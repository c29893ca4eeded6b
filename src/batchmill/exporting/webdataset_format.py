"""WebDataset: tar files. Two members with one key are a sample: its file, and its row as JSON."""

import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

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

    def check(self, rows: pa.Table) -> None:
        """Do nothing, because every row can be written as JSON."""

    def write(self, file: HashingFile, content: ShardContent) -> Mapping[str, Any]:
        """Write a shard, one write per sample."""
        size = 0
        samples = zip(content.keys, content.suffixes, content.texts, content.read(), strict=True)
        for key, suffix, text, data in samples:
            row = _OTHER_ROW if suffix == _ROW else _ROW
            size += file.write(_member(f"{key}.{suffix}", data) + _member(f"{key}.{row}", text))
        # Two empty blocks end an archive. Its size is a multiple of RECORDSIZE.
        end = 2 * tarfile.BLOCKSIZE
        file.write(b"\0" * (end + -(size + end) % tarfile.RECORDSIZE))
        return {}

    def payloads(self, path: Path) -> Iterator[bytes]:
        """Yield the content of every second member."""
        with tarfile.open(path, "r:") as archive:
            for number, member in enumerate(archive):
                opened = archive.extractfile(member) if number % 2 == 0 else None
                if opened:
                    yield opened.read()

    def describe(self, shards: Mapping[str, Mapping[str, Any]]) -> Mapping[str, bytes]:  # noqa: ARG002
        """Return nothing: the format has no index."""
        return {}


def _member(name: str, data: bytes) -> bytes:
    """Return a member of an archive: its header, its content, and zeros to a full block."""
    header = tarfile.TarInfo(name)  # Its time is 0.
    header.size = len(data)
    return header.tobuf(tarfile.GNU_FORMAT) + data + b"\0" * (-len(data) % tarfile.BLOCKSIZE)
