"""Detect which files a plan depends on have changed: inputs, and outputs of earlier runs."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.ledger.recorded_outputs import file_names, listed_outputs
from batchmill.core.manifest import Manifest
from batchmill.core.manifest.companions import companion_rows
from batchmill.core.storage import Store, in_threads, is_url, open_store, remote
from batchmill.core.storage.addresses import parse_address
from batchmill.core.storage.fingerprints import SeenFile, content_of, joint_content
from batchmill.core.storage.folder_files import files_in, folder_fingerprint
from batchmill.core.storage.large_tables import select, take_values
from batchmill.core.urls import join
from batchmill.errors import StoreError

# The columns that show without reading a file that it may have changed. A program that copies or
# unpacks files can set `mtime_ns`, but not `ctime_ns`.
TIMES = ("mtime_ns", "etag", "ctime_ns", "companions")
_THREADS = 8


@dataclass(frozen=True, kw_only=True)
class FileChanges:
    """Differences between the ledger's records and the files.

    Attributes:
        contents: The content hash of each input of the manifest that has the recorded size but
            other TIMES. Null for others, and if the file cannot be read. None: all are null.
        damaged: Inputs with an output that is missing or has another size than recorded.
    """

    contents: pa.ChunkedArray | None = None
    damaged: frozenset[str] = frozenset()


def detect_changes(
    manifest: Manifest,
    done: pa.Table,
    identities: Collection[str],
    store: Store,
    *,
    folders: bool = False,
) -> FileChanges:
    """Compare the ledger's records of a step with the files.

    An input is read only if its size and TIMES do not show whether it changed.

    Args:
        manifest: The checked manifest.
        done: The record of each input, a row of nulls without one.
        identities: The step's identity, and those whose outcomes are adopted. Records of other
            steps are ignored.
        store: The dataset's store, which holds the outputs.
        folders: True if the inputs are folders.

    Returns:
        The inputs that need a decision, for `make_plan`.

    Raises:
        StoreError: The store cannot be read.
    """
    # Inputs recorded with another step are executed again in any case.
    is_ours = pc.is_in(done["step"], value_set=pa.array(sorted(identities), pa.string()))
    contents = [
        _read_unclear(
            *(part, done.slice(start, len(part)), is_ours.slice(start, len(part))), folders=folders
        )
        for start, part in manifest.slices()
    ]
    has_files = pc.greater(pc.list_value_length(done["outputs"]), 0)
    has_files = pc.and_(has_files, pc.equal(done["outcome"], "ok"))
    made = select(done.select(["input", "outputs"]), pc.and_(is_ours, has_files).fill_null(False))
    # In one call, because a bucket may list all outputs.
    damaged = _find_damaged(made, store)
    return FileChanges(contents=pa.chunked_array(contents, pa.string()), damaged=damaged)


def _read_unclear(
    manifest: Manifest, recorded: pa.Table, is_ours: pa.ChunkedArray, *, folders: bool
) -> pa.Array:
    """Return the content of each input that its size and times do not show to be unchanged."""
    current = manifest.inputs
    has_unknown_time = pc.equal(current["mtime_ns"], remote.UNKNOWN_TIME)
    may_differ = pc.or_(has_other_time(recorded, current), has_unknown_time)
    # The content of an input that its step reads in parts is unknown, so another time is a change.
    has_content = pc.not_equal(recorded["content"], "").fill_null(True)
    masks = (is_ours, may_differ, pc.invert(has_other_size(recorded, current)), has_content)
    rows = pc.indices_nonzero(reduce(pc.and_, masks))
    unclear = current.take(rows)
    tables = {name: table.take(rows) for name, table in manifest.companions.items()}
    companions = companion_rows(tables, len(rows))
    columns = (unclear["input"].to_pylist(), unclear["etag"].to_pylist(), companions)
    read = partial(_read_contents, manifest.root, folders=folders)
    contents = in_threads(lambda row: read(*row), [*zip(*columns, strict=True)], _THREADS)
    place = pc.index_in(pa.array(np.arange(len(current), dtype=np.uint64)), value_set=rows)
    return pa.array([content or None for content in contents], pa.string()).take(place)


def has_other_size(recorded: pa.Table, current: pa.Table) -> pa.ChunkedArray:
    """Return which rows differ in size. A null or an unknown size differs from nothing."""
    differs = pc.not_equal(recorded["size"], current["size"]).fill_null(False)
    return pc.and_(differs, pc.not_equal(current["size"], remote.UNKNOWN_SIZE))


def has_other_time(recorded: pa.Table, current: pa.Table) -> pa.ChunkedArray:
    """Return which rows differ in one of TIMES. A null time or ETag differs from nothing."""
    masks = [pc.not_equal(recorded[name], current[name]).fill_null(False) for name in TIMES]
    is_alone = pc.is_null(recorded["companions"]), pc.is_null(current["companions"])
    return reduce(pc.or_, masks, pc.xor(*is_alone))


def _read_contents(
    root: str,
    name: str,
    etag: str | None,
    companions: Mapping[str, SeenFile | None],
    *,
    folders: bool,
) -> str:
    """Return the hash of an input's content, with its companions; "" if a file is unreadable."""
    content = _read_content(root, name, etag, is_folder=folders)
    others = {
        column: (file.name, _read_content(root, file.name, file.etag)) if file else None
        for column, file in companions.items()
    }
    if not content or any(other and not other[1] for other in others.values()):
        return ""
    return joint_content(content, others) if others else content


def _read_content(root: str, name: str, etag: str | None, *, is_folder: bool = False) -> str:
    place = join(root, name)
    try:
        if is_folder:
            files = files_in(place)
            read = partial(_read_content, place, etag=None)
            return folder_fingerprint(place, files, lambda file: read(file.name)).content
        if etag and parse_address(etag):
            return open_store(root).content_of(etag)
        return remote.content_of(place) if is_url(place) else content_of(place)
    except (OSError, StoreError):
        return ""  # The run executes the input, and its outcome will have the error.


def _find_damaged(records: pa.Table, store: Store) -> frozenset[str]:
    counts = pc.list_value_length(records["outputs"]).to_numpy()
    sizes = pc.struct_field(listed_outputs(records), "size").to_pylist()
    sizes_now = store.sizes(file_names(records).to_pylist())
    is_other = [now != size for size, now in zip(sizes, sizes_now, strict=True)]
    damaged = np.unique(np.repeat(np.arange(len(records)), counts)[is_other])
    return frozenset(take_values(records["input"], damaged).to_pylist())
