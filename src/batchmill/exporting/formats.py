"""The interface of the formats, and the formats by name."""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from batchmill.errors import OptionError
from batchmill.storage.fingerprints import HashingFile


@dataclass(frozen=True, kw_only=True)
class ShardContent:
    """The samples of one shard.

    Attributes:
        keys: The key of each sample.
        suffixes: The suffix of each file, without the dot.
        rows: The published row of each sample.
        texts: The same rows, as JSON.
        kind: The kind of all files of the dataset: "image", "audio" or "file".
        read: Yields the content of each file, in order.
    """

    keys: Sequence[str]
    suffixes: Sequence[str]
    rows: pa.Table
    texts: Sequence[bytes]
    kind: str
    read: Callable[[], Iterator[bytes]]


class Format(Protocol):
    """A format of shards."""

    tag: str
    """The name and the version. A shard with another tag is written again."""
    split: str
    """The split of a dataset without partitions."""

    def shard_name(self, split: str, number: int, count: int) -> str:
        """Return the file name of shard `number` of `count` shards of a split."""
        ...

    def check(self, rows: pa.Table) -> None:
        """Raise OptionError if rows cannot be written, or a library is missing."""
        ...

    def write(self, file: HashingFile, content: ShardContent) -> Mapping[str, Any]:
        """Write a shard. Return what `describe` needs to know about it, as JSON values."""
        ...

    def payloads(self, path: Path) -> Iterator[bytes]:
        """Yield the content of each file in a shard, in order. A damaged shard raises any error."""
        ...

    def describe(self, shards: Mapping[str, Mapping[str, Any]]) -> Mapping[str, bytes]:
        """Return the further files of an export, by name.

        Args:
            shards: The results of `write`, by the names of the shards.
        """
        ...


_MODULES = {"webdataset": "WebDataset", "huggingface": "HuggingFace"}


def find_format(name: str) -> Format:
    """Return a format by its name. Raises OptionError."""
    if name not in _MODULES:
        raise OptionError(f"--to {name}: is not a format. Choose from {', '.join(_MODULES)}.")
    module = importlib.import_module(f"batchmill.exporting.{name}_format")
    found: Format = getattr(module, _MODULES[name])()
    return found
