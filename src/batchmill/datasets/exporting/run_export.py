"""Export a dataset: plan its shards, write those that changed, then write the index."""

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from typing import Any, TypeVar

from batchmill.core.layout import LEDGER_FOLDER
from batchmill.core.ledger.json_file import sealed
from batchmill.core.options.validation import parse_size
from batchmill.core.planning.batching import own_cores
from batchmill.core.security.allowlist import check_dataset
from batchmill.core.storage import Store, if_exists, is_url, open_store, remote
from batchmill.core.storage.objects import unwritable
from batchmill.core.urls import absolute
from batchmill.datasets.exporting import index
from batchmill.datasets.exporting.chosen_samples import choose_rows
from batchmill.datasets.exporting.formats import ShardTask, find_format
from batchmill.datasets.exporting.plan_shards import plan_shards
from batchmill.datasets.exporting.write_shard import digest_samples, write_shard
from batchmill.datasets.reading.published import check_kept
from batchmill.datasets.reading.selection import Selection
from batchmill.errors import OptionError, StoreError

SHARD_SIZE = "256M"
_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """The shards of an export.

    Attributes:
        out: The folder or URL of the export.
        shards: The names of all shards, in order.
        samples: The number of samples.
        bytes: The size of all shards in bytes.
        written: The number of shards that this export wrote. The others were there before.
    """

    out: str
    shards: Sequence[str]
    samples: int
    bytes: int
    written: int


def export_dataset(
    dataset: str,
    out: str,
    *,
    to: str,
    partitions: tuple[str, ...] | None = None,
    where: str = "",
    shuffle: int | None = None,
    shard_size: str | int = SHARD_SIZE,
    version: int | str | None = None,
    stale: bool = True,
    class_labels: Sequence[str] = (),
    num_workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ExportResult:
    """Write the samples of a dataset as shards of a format. Keep the shards that did not change.

    If this process is killed, the same call resumes, and ends with the same files.

    Args:
        dataset: The dataset's folder or URL.
        out: The folder or URL of the export: new, empty, or an earlier export.
        to: The name of the format.
        partitions: The partitions to export. None: all rows.
        where: A condition on columns. Empty: all rows.
        shuffle: The seed of a random order. None: the order of the table.
        shard_size: The largest size of a shard, about: bytes, or a text such as "256M".
        version: The number or name of a version. None: the last one.
        stale: False to leave out earlier results of inputs that are not ok.
        class_labels: Columns with few texts, which become class labels of Hugging Face.
        num_workers: The number of threads. None: one per core.
        progress: Called after each shard, with the number of finished shards and of all.

    Returns:
        The shards.

    Raises:
        OptionError: An option cannot be used, or `out` contains other files.
        StoreError: A file cannot be read or written.
    """
    dataset, out = absolute(dataset).rstrip("/"), absolute(out)
    find_format(to)  # Raises for an unknown format.
    if class_labels and to != "huggingface":
        raise OptionError("--class-label: only --to huggingface has class labels.")
    shard_bytes = parse_size(str(shard_size), "--shard-size")
    if shard_bytes < 1:
        raise OptionError(f"--shard-size {shard_size}: must be 1 or more bytes.")
    store = _open_out(dataset, out, to)
    selection = Selection(dataset=dataset, partitions=partitions, where=where, stale=stale)
    chosen = choose_rows(selection, shuffle=shuffle, version=version, class_labels=class_labels)
    plan = plan_shards(chosen, to, out, shard_bytes)
    workers = max(1, min(num_workers or own_cores(), len(plan)))
    try:
        with _locked(store):
            records, written = _write(store, to, plan, workers, progress)
            content = {
                "version": index.VERSION,
                "to": to,
                "dataset": dataset,
                "table": chosen.table_hash,
                "samples": len(chosen.rows),
                "shards": [{"name": name, **record._asdict()} for name, record in records.items()],
            }
            _finish(store, set(records), content)
    except StoreError:
        if not chosen.are_inputs:
            check_kept(dataset, chosen.table_hash)  # The version may have been removed.
        raise
    size = sum(record.size for record in records.values())
    return ExportResult(
        out=out, shards=list(records), samples=len(chosen.rows), bytes=size, written=written
    )


def _open_out(dataset: str, out: str, to: str) -> Store:
    """Return the store of the export. Raise OptionError if it contains anything else."""
    check_dataset(out)
    fault = unwritable(out) if is_url(out) else ""
    if fault:
        raise OptionError(f"{out}: {fault}")
    if f"{out}/".startswith(f"{dataset}/") or os.path.isfile(out):
        raise OptionError(f"{out}: is a file or inside the dataset. Name another folder.")
    store = open_store(out)
    names = store.names("")
    if not names and is_url(out):
        remote.check_bucket(out)
    if names and index.FOLDER not in names:
        kind = "a dataset" if LEDGER_FOLDER in names else "files, but no export"
        raise OptionError(f"{out}: contains {kind}. Name a new or empty folder.")
    for earlier in index.earlier_exports(store):
        if (earlier["version"], earlier["to"]) != (index.VERSION, to):
            raise OptionError(
                f"{out}: contains an export to {earlier['to']} (version {earlier['version']}). "
                "Name another folder."
            )
    return store


def _write(
    store: Store,
    to: str,
    plan: Sequence[ShardTask],
    workers: int,
    progress: Callable[[int, int], None] | None,
) -> tuple[dict[str, index.ShardRecord], int]:
    """Write the shards that are missing or changed. Return all records, and the number written."""
    digests = dict(_in_threads(digest_samples, plan, workers))
    plan = [task._replace(digest=digests[task.name]) for task in plan]
    earlier = index.earlier_files(store)
    index.remove_leftovers(store, earlier | digests.keys())
    known = {name: record for name in earlier if (record := index.read_record(store, name))}

    def is_missing(task: ShardTask) -> bool:
        return task.name not in known or known[task.name].digest != task.digest

    if any(map(is_missing, plan)) or not known.keys() <= digests.keys():
        index.begin(store, to, earlier | digests.keys())
        _move(store, {task.name: task.digest for task in plan}, known)
    todo = list(filter(is_missing, plan))
    for done, (name, record) in enumerate(_in_threads(write_shard, todo, workers), 1):
        known[name] = record
        if progress:
            progress(len(plan) - len(todo) + done, len(plan))
    return {task.name: known[task.name] for task in plan}, len(todo)


def _in_threads(
    function: Callable[[ShardTask, Event], _Result], tasks: Iterable[ShardTask], workers: int
) -> Iterator[tuple[str, _Result]]:
    """Call a function with each task, and yield the shard's name and the result when it returns.

    After an error or Ctrl-C, the event is set: the threads stop before their next sample.
    """
    stop = Event()
    with ThreadPoolExecutor(workers) as pool:
        try:
            begun = {pool.submit(function, task, stop): task.name for task in tasks}
            for future in as_completed(begun):
                yield begun[future], future.result()
        finally:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)


def _move(store: Store, digests: Mapping[str, str], known: dict[str, index.ShardRecord]) -> None:
    """Copy the shards that have only another name now, and update `known`."""
    at = {record.digest: name for name, record in known.items()}
    order = {name: number for number, name in enumerate(digests)}
    moves = [
        (at[digest], name)
        for name, digest in digests.items()
        if digest in at and (name not in known or known[name].digest != digest)
    ]
    # A shard is copied before another one replaces it.
    up = [move for move in reversed(moves) if order.get(move[0], -1) < order[move[1]]]
    for source, target in [*up, *(move for move in moves if move not in up)]:
        if source not in known or known[source].digest != digests[target]:
            continue  # It was replaced, so the target is written like a new shard.
        record, samples = known[source], index.read_samples(store, source)
        store.delete(index.record_name(target))
        store.copy(source, target)
        index.write_record(store, target, record, samples)
        known[target] = record


def _finish(store: Store, names: Set[str], content: Mapping[str, Any]) -> None:
    """Remove all shards except those with these names, and write the index last."""
    data = sealed(content)
    if if_exists(store.read, index.INDEX) == data and not store.exists(index.BEGUN):
        return
    for name in index.earlier_files(store) - names:
        store.delete(index.record_name(name))
        store.delete(name)
    store.write(index.INDEX, data)
    store.delete(index.BEGUN)


@contextmanager
def _locked(store: Store) -> Iterator[None]:
    """Reject a second export to the same folder. Buckets have no such lock."""
    if is_url(store.url):
        yield
        return
    folder = os.path.join(store.url, index.FOLDER)
    try:
        os.makedirs(folder, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise StoreError(folder, f"{error.strerror}. Name another folder.") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise OptionError(f"{store.url}: another export writes to it. Wait for its end.") from error
    finally:
        os.close(descriptor)
