"""Compare an export with its index: every shard, and every sample of a damaged shard."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import pyarrow as pa

from batchmill.core.storage import Store, open_store
from batchmill.core.storage.fingerprints import hash_bytes
from batchmill.core.urls import absolute
from batchmill.datasets.exporting.formats import find_format
from batchmill.datasets.exporting.index import FOLDER, read_index, read_samples


class ExportDifference(NamedTuple):
    """One file or sample that differs from the index.

    Attributes:
        kind: "missing", "changed", or "unexpected" for a file that the export did not write.
        path: The name of the file.
        sample: The key of the sample. Empty if the whole file is meant.
        input: The input of the sample.
    """

    kind: Literal["missing", "changed", "unexpected"]
    path: str
    sample: str = ""
    input: str = ""


def find_differences(out: str) -> Iterator[ExportDifference]:
    """Yield the differences between an export and its index. Reads every shard.

    Args:
        out: The folder or URL of the export.

    Raises:
        OptionError: There is no complete export.
        StoreError: The store cannot be read.
    """
    store = open_store(absolute(out))
    index = read_index(store)
    known = {file["name"]: file["content"] for file in index["shards"]}
    for name, content in known.items():
        if not store.exists(name):
            yield ExportDifference("missing", name)
        elif store.content_of(name) != content:
            samples = list(_changed_samples(store, name, index["to"]))
            yield from samples or [ExportDifference("changed", name)]
    for folder in sorted({name.rpartition("/")[0] for name in known}):
        for last in store.names(folder):
            name = f"{folder}/{last}" if folder else last
            if name not in known and name != FOLDER:
                yield ExportDifference("unexpected", name)


def _changed_samples(store: Store, name: str, to: str) -> Iterator[ExportDifference]:
    """Yield the samples whose file differs. Nothing if the difference is elsewhere in the shard."""
    with pa.BufferReader(store.map(name)) as file:
        payloads = find_format(to).payloads(file)
        for sample in read_samples(store, name).to_pylist():
            try:
                data = next(payloads, None)
            except Exception:  # noqa: BLE001  # Any library may read the damaged shard.
                return
            if data is None or hash_bytes(data) != sample["content"]:
                yield ExportDifference("changed", name, sample["key"], sample["input"])
