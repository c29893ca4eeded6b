"""Write one shard of an export and its record."""

from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from threading import Event

import pyarrow as pa
import xxhash

from batchmill.core.security.allowlist import check_input
from batchmill.core.storage import is_url, open_store, remote
from batchmill.core.storage.addresses import parse_address
from batchmill.core.storage.fingerprints import HashingFile, hash_bytes
from batchmill.core.storage.store import ahead_in_threads, write_and_hash
from batchmill.core.urls import join
from batchmill.datasets.exporting.formats import SampleFile, ShardTask, find_format, json_of
from batchmill.datasets.exporting.index import ShardRecord, record_name, write_record
from batchmill.errors import CancelledError, StoreError


def digest_samples(task: ShardTask, stop: Event) -> str:
    """Return the digest of all that the bytes of a shard depend on.

    Raises:
        CancelledError: `stop` was set.
        StoreError: A file without a recorded hash cannot be read.
        OptionError: An input may not be read here.
    """
    tag = find_format(task.to).tag
    head = f"{tag} {task.kind}{task.further or ''}{task.labels or ''} {task.rows.schema}\n"
    state = xxhash.xxh3_128(head.encode())
    for column in ("key", "suffix"):
        state.update("\n".join(task.samples[column].to_pylist()).encode())
    for (first, *further), row in zip(task.files(), task.dicts(), strict=True):
        _check(stop)
        content = first.content or hash_bytes(_read_file(first, task))
        state.update(f"\n{content} ".encode())
        for file in further:
            state.update(f"{file.column}.{file.suffix} {file.content} ".encode())
        text = json_of(row)
        # NaN and infinity are null there, too. `repr` is slow for long lists of numbers.
        state.update(repr(row).encode() if b"null" in text else text)
    return state.hexdigest()


def write_shard(task: ShardTask, stop: Event) -> ShardRecord:
    """Write a shard, then its record. An earlier record is removed first.

    So a record always describes the file beside it, even if this process is killed.

    Raises:
        CancelledError: `stop` was set.
        StoreError: A file cannot be read, or the shard cannot be written.
        OptionError: An input may not be read here.
    """
    hashes: list[str] = []

    def read() -> Iterator[list[bytes]]:
        files = task.files()
        each, load = [*chain(*files)], partial(_read_file, task=task)
        is_remote = is_url(task.root)
        contents = ahead_in_threads(load, each, remote.THREADS) if is_remote else map(load, each)
        for sample_files in files:
            _check(stop)
            parts = list(islice(contents, len(sample_files)))
            hashes.append(hash_bytes(b"".join(parts)))  # A single part is not copied.
            yield parts

    def write(file: HashingFile) -> None:
        hashes.clear()  # A retry writes the file again.
        find_format(task.to).write(file, task, read())

    store = open_store(task.out)
    store.delete(record_name(task.name))
    written = write_and_hash(store, task.name, write)
    record = ShardRecord(task.digest, len(task.samples), written.size, written.content)
    table = pa.table({"key": task.keys(), "input": task.rows["input"], "content": hashes})
    write_record(store, task.name, record, table)
    return record


def _check(stop: Event) -> None:
    if stop.is_set():
        raise CancelledError("The export was stopped.")


def _read_file(file: SampleFile, task: ShardTask) -> bytes:
    """Read a file, and compare it with its recorded hash. The allowlist may reject an input.

    Raises:
        StoreError: The file is missing, or differs from its record.
        OptionError: The input may not be read here.
    """
    place = join(task.root, file.place)
    if task.are_inputs:
        check_input(place)
    if parse_address(file.place):
        data = open_store(task.root).read(file.place)
    elif is_url(place):
        data = remote.read(place)
    else:
        try:
            with open(place, "rb", buffering=0) as opened:
                data = opened.read()
        except OSError as error:
            raise StoreError(place, f"{error.strerror}. {_remedy(task)}") from error
    if file.content and hash_bytes(data) != file.content:
        raise StoreError(place, f"differs from what the run recorded. {_remedy(task)}")
    return data


def _remedy(task: ShardTask) -> str:
    if task.are_inputs:
        return "The samples are the inputs, so run the job again, then export."
    return "Repair the dataset: batchmill verify --hash --repair. Then run the job again."
