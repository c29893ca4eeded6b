"""The interface of the formats, and the formats by name."""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from batchmill.errors import OptionError
from batchmill.storage.fingerprints import HashingFile


@dataclass(frozen=True, kw_only=True)
class SampleFile:
    """A file of a sample.

    Attributes:
        column: The column that names a further file. Empty for the sample's own file.
        suffix: Its suffix, without the dot.
        place: Its path or URL, relative to the root, or its address in a pack.
        content: The recorded hash of its content. Empty if there is no record.
    """

    column: str
    suffix: str
    place: str
    content: str


@dataclass(frozen=True, kw_only=True)
class ShardContent:
    """The samples of one shard.

    Attributes:
        keys: The key of each sample.
        rows: The published row of each sample.
        texts: The same rows, as JSON.
        files: The files of each sample: its own file, then its further files.
        kind: The kind of the samples' own files: "image", "audio" or "file".
        further_kinds: The kind of the further files by column.
        read: Yields the contents of the files of each sample, in order.
    """

    keys: Sequence[str]
    rows: pa.Table
    texts: Sequence[bytes]
    files: Sequence[Sequence[SampleFile]]
    kind: str
    further_kinds: Mapping[str, str]
    read: Callable[[], Iterator[list[bytes]]]


class Format(Protocol):
    """A format of shards."""

    tag: str
    """The name and the version. A shard with another tag is written again."""
    split: str
    """The split of a dataset without partitions."""

    def shard_name(self, split: str, number: int, count: int) -> str:
        """Return the file name of shard `number` of `count` shards of a split."""

    def write(self, file: HashingFile, content: ShardContent) -> None:
        """Write a shard."""

    def payloads(self, path: Path) -> Iterator[bytes]:
        """Yield the contents of the files of each sample, joined.

        A damaged shard raises any error.
        """


_MODULES = {"webdataset": "WebDataset", "huggingface": "HuggingFace"}


def find_format(name: str) -> Format:
    """Return a format by its name. Raises OptionError."""
    if name not in _MODULES:
        raise OptionError(f"--to {name}: is not a format. Choose from {', '.join(_MODULES)}.")
    module = importlib.import_module(f"batchmill.exporting.{name}_format")
    found: Format = getattr(module, _MODULES[name])()
    return found
