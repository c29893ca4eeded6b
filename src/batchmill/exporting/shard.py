"""Write one shard of an export and its record."""

import base64
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from threading import Event
from typing import BinaryIO, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from batchmill.errors import CancelledError, StoreError
from batchmill.exporting.formats import FurtherFile, ShardContent, find_format
from batchmill.exporting.outputs import OutputFile, read_outputs
from batchmill.storage import Store, open_store
from batchmill.storage.fingerprints import HashingFile, hash_bytes

# The folder of the records and of the index. Its name begins with a dot, so that no reader of a
# format opens its files.
FOLDER = ".batchmill-export"
_KEY = b"batchmill.shard"


class ShardTask(NamedTuple):
    """The samples of one shard, and its file.

    Attributes:
        to: The name of the format.
        out: The folder or URL of the export.
        name: The name of the shard's file.
        root: The folder or URL of the samples' files.
        are_inputs: True if these files are the inputs.
        kind: The kind of all files: "image", "audio" or "file".
        further: The kind of the further files by column.
        samples: The columns key, suffix, place, content and further.
        rows: The published rows.
        digest: The digest of the samples, if it is known.
    """

    to: str
    out: str
    name: str
    root: str
    are_inputs: bool
    kind: str
    further: Mapping[str, str]
    samples: pa.Table
    rows: pa.Table
    digest: str = ""


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


def digest_samples(task: ShardTask, stop: Event) -> str:
    """Return the digest of all that the bytes of a shard depend on.

    Raises:
        CancelledError: `stop` was set.
        StoreError: A file without a recorded hash cannot be read.
        OptionError: An input may not be read here.
    """
    samples, rows = task.samples, task.rows
    state = xxhash.xxh3_128(f"{find_format(task.to).tag} {task.kind} {rows.schema}\n".encode())
    for column in ("key", "suffix"):
        state.update("\n".join(samples[column].to_pylist()).encode())
    further = _further_files(samples)
    for number, text in enumerate(_texts(rows)):
        _check(stop)
        content = samples["content"][number].as_py()
        if not content:
            file = OutputFile(samples["place"][number].as_py(), "")
            content = hash_bytes(*read_outputs([file], task.root, are_inputs=task.are_inputs))
        state.update(f"\n{content} ".encode())
        for one in further[number]:
            state.update(f"{one.column}.{one.suffix} {one.content} ".encode())
        state.update(text)
    return state.hexdigest()


def write_shard(task: ShardTask, stop: Event) -> ShardRecord:
    """Write a shard, then its record. An earlier record is removed first.

    So a record always describes the file beside it, even if this process is killed.

    Raises:
        CancelledError: `stop` was set.
        StoreError: A file cannot be read, or the shard cannot be written.
        OptionError: An input may not be read here.
    """
    samples, rows = task.samples, task.rows
    places = zip(samples["place"].to_pylist(), samples["content"].to_pylist(), strict=True)
    further = _further_files(samples)
    files: list[OutputFile] = []
    for place, more in zip(places, further, strict=True):
        files += [OutputFile(*place), *(OutputFile(file.place, file.content) for file in more)]
    hashes: list[str] = []

    def read() -> Iterator[list[bytes]]:
        hashes.clear()
        contents = read_outputs(files, task.root, are_inputs=task.are_inputs)
        for more in further:
            _check(stop)
            found = list(islice(contents, 1 + len(more)))
            hashes.append(hash_bytes(b"".join(found) if more else found[0]))
            yield found

    content = ShardContent(
        keys=samples["key"].to_pylist(),
        suffixes=samples["suffix"].to_pylist(),
        rows=rows,
        texts=list(_texts(rows)),
        kind=task.kind,
        further=further,
        further_kinds=task.further,
        read=read,
    )
    store = open_store(task.out)
    store.delete(record_name(task.name))
    made: list[HashingFile] = []

    def write(file: BinaryIO) -> None:
        made.append(HashingFile(file))
        find_format(task.to).write(made[-1], content)

    store.write_atomic(task.name, write)
    written = made[-1]
    record = ShardRecord(task.digest, len(content.keys), written.size, written.content)
    table = pa.table({"key": content.keys, "input": rows["input"], "content": hashes})
    write_record(store, task.name, record, table)
    return record


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
    path = record_name(name)
    if not store.exists(path):
        return None
    try:
        with store.open(path) as file:
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


def _check(stop: Event) -> None:
    if stop.is_set():
        raise CancelledError("The export was stopped.")


def _further_files(samples: pa.Table) -> list[list[FurtherFile]]:
    return [[FurtherFile(**file) for file in files] for files in samples["further"].to_pylist()]


def _texts(rows: pa.Table) -> Iterator[bytes]:
    """Yield each row as JSON."""
    for batch in rows.to_batches(max_chunksize=1000):
        for row in batch.to_pylist():
            yield orjson.dumps(row, default=_as_json)


def _as_json(value: object) -> str:
    """Return a value that JSON does not have as text."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
