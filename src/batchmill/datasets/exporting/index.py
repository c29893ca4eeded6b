"""The index of an export, the records of its shards, and the list of the files it has begun."""

from collections.abc import Set
from functools import partial
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from batchmill.core.ledger.json_file import read_sealed, sealed
from batchmill.core.storage import Store, if_exists, open_store
from batchmill.errors import OptionError, StoreError

# The folder of the records and of the index. Its name begins with a dot, so that no reader of a
# format opens its files.
FOLDER = ".batchmill-export"
_KEY = b"batchmill.shard"
INDEX = f"{FOLDER}/index.json"
# The names of all shards that an export has begun to write. A killed export may have left any.
BEGUN = f"{FOLDER}/begun.json"
VERSION = 1
# The advice about a damaged index.
_REMEDY = "Delete the export, and export again."


class ShardRecord(NamedTuple):
    """A complete shard.

    Attributes:
        digest: The digest of its samples. It decides whether the shard is written again.
        samples: Their number.
        size: The size of its file in bytes.
        content: The hash of its file.
    """

    digest: str
    samples: int
    size: int
    content: str


def read_index(store: Store) -> dict[str, Any]:
    """Return the index of a complete export. Raises OptionError and StoreError."""
    if not store.exists(INDEX):
        what = "is not complete" if store.exists(BEGUN) else "is not an export"
        raise OptionError(f"{store.url}: {what}. Run batchmill export, then this command again.")
    content = read_sealed(store, INDEX, _REMEDY)
    if content["version"] != VERSION:
        raise OptionError(
            f"{store.url}: is an export of version {content['version']}, and this batchmill reads "
            f"version {VERSION}. Use another batchmill, or export again to a new folder."
        )
    return content


def earlier_exports(store: Store) -> list[dict[str, Any]]:
    """Return the list of the files that an export has begun, and the index of a complete one."""
    contents = (if_exists(read_sealed, store, name, _REMEDY) for name in (BEGUN, INDEX))
    return [content for content in contents if content]


def earlier_files(store: Store) -> set[str]:
    """Return the names of the files that earlier exports wrote, or began to write."""
    return {shard["name"] for content in earlier_exports(store) for shard in content["shards"]}


def begin(store: Store, to: str, names: Set[str]) -> None:
    """Record the files that will be written, and remove the index."""
    shards = [{"name": name} for name in sorted(names)]
    store.write(BEGUN, sealed({"version": VERSION, "to": to, "shards": shards}))
    store.delete(INDEX)


def remove_leftovers(store: Store, names: Set[str]) -> None:
    """Remove the temporary files that a killed export left beside files of these names."""
    for folder in {"", *(name.rpartition("/")[0] for name in names)}:
        inside = open_store(store.url_of(folder))
        for name in inside.leftovers():
            inside.delete(name)


def record_name(name: str) -> str:
    """Return the name of the record of a shard's file."""
    return f"{FOLDER}/{name}.record"


def write_record(store: Store, name: str, record: ShardRecord, samples: pa.Table) -> None:
    """Write the record of a shard, with the key, the input and the hash of each sample."""
    table = samples.replace_schema_metadata({_KEY: orjson.dumps(record._asdict())})
    store.write_atomic(record_name(name), partial(pq.write_table, table, compression="zstd"))


def read_record(store: Store, name: str) -> ShardRecord | None:
    """Return the record of a shard. None if it is missing or damaged, or the file's size differs.

    Raises:
        StoreError: The store cannot be read.
    """
    file = if_exists(store.open, record_name(name))
    if file is None:
        return None
    try:
        with file:
            metadata = pq.read_schema(file).metadata or {}
        record = ShardRecord(**orjson.loads(metadata[_KEY]))
    except (pa.ArrowException, KeyError, TypeError, ValueError):
        return None
    [size] = store.sizes([name])
    return record if size == record.size else None


def read_samples(store: Store, name: str) -> pa.Table:
    """Return the columns key, input and content of a shard's record.

    Raises:
        StoreError: The record is missing or damaged.
    """
    try:
        with store.open(record_name(name)) as file:
            return pq.read_table(file)
    except pa.ArrowException as error:
        raise StoreError(store.url_of(record_name(name)), "is damaged. Export again.") from error
