"""Look at the files that a plan depends on: inputs that may be others, outputs that may be gone."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.errors import StoreError
from batchmill.manifest import Manifest
from batchmill.storage import Store, in_threads, is_url, remote
from batchmill.storage.fingerprints import content_of
from batchmill.storage.urls import join

_THREADS = 8


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What a look at the files has shown.

    `contents` has the hashes of inputs whose time or ETag is not the recorded one though their size
    is; `damaged` the inputs of which an output is missing or has another size.
    """

    contents: Mapping[str, str] = field(default_factory=dict)
    damaged: frozenset[str] = frozenset()


def survey(
    manifest: Manifest, records: pa.Table, place: pa.Array, identity: str, store: Store
) -> Survey:
    """Compare the ledger's records of a step with the files; reads only what a look leaves open.

    `place` has the row of each input's record, null where there is none. Raises StoreError.
    """
    inputs = manifest.inputs
    # Records of another step are no good anyway.
    is_ours = pc.equal(records["step"], identity).combine_chunks().take(place).fill_null(False)
    listed, now = records.take(place.filter(is_ours)), inputs.filter(is_ours)
    other_time = pc.or_(
        pc.not_equal(listed["mtime_ns"], now["mtime_ns"]),
        pc.not_equal(listed["etag"], now["etag"]).fill_null(False),
    )
    other_time = pc.or_(other_time, pc.equal(now["mtime_ns"], remote.UNKNOWN_TIME))
    touched = pc.and_(pc.equal(listed["size"], now["size"]), other_time)
    names = now["input"].filter(touched).to_pylist()
    contents = in_threads(lambda name: _content(join(manifest.root, name)), names, _THREADS)
    ok = listed.filter(pc.equal(listed["outcome"], "ok"))
    return Survey(
        contents=dict(zip(names, contents, strict=True)), damaged=frozenset(_damaged(ok, store))
    )


def _content(place: str) -> str:
    try:
        return remote.content_of(place) if is_url(place) else content_of(place)
    except (OSError, StoreError):
        return ""  # Its turn will tell.


def _damaged(records: pa.Table, store: Store) -> Iterable[str]:
    lists = records["outputs"].combine_chunks()
    files = lists.flatten()
    owners = pc.list_parent_indices(lists).to_pylist()
    paths, sizes = files.field("path").to_pylist(), files.field("size").to_pylist()
    found = store.sizes(paths)
    damaged = {owner for owner, size, now in zip(owners, sizes, found, strict=True) if now != size}
    names: list[str] = records["input"].take(pa.array(sorted(damaged), pa.int64())).to_pylist()
    return names
