"""Look at the files that a plan depends on: inputs that may be others, outputs that may be gone."""

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.fingerprints import content_of
from batchmill.manifest import Manifest

_THREADS = 8


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What a look at the files has shown.

    `contents` has the hashes of inputs whose time is not the recorded one though their size is;
    `damaged` the inputs of which an output is missing or has another size.
    """

    contents: Mapping[str, str] = field(default_factory=dict)
    damaged: frozenset[str] = frozenset()


def survey(manifest: Manifest, records: pa.Table, dataset: Path) -> Survey:
    """Compare the ledger's records with the files; reads only what `stat` leaves open."""
    inputs = manifest.inputs
    place = pc.index_in(records["input"], value_set=pa.concat_arrays(inputs["input"].chunks))
    listed = records.filter(pc.is_valid(place))
    now = inputs.take(place.drop_null())
    touched = pc.and_(
        pc.equal(listed["size"], now["size"]), pc.not_equal(listed["mtime_ns"], now["mtime_ns"])
    )
    names = listed["input"].filter(touched).to_pylist()
    ok = listed.filter(pc.equal(listed["outcome"], "ok"))
    return Survey(
        contents=_contents(names, manifest.root), damaged=frozenset(_damaged(ok, dataset))
    )


def _contents(names: Iterable[str], root: Path) -> dict[str, str]:
    def look(name: str) -> tuple[str, str]:
        try:
            return name, content_of(os.path.join(root, name))
        except OSError:
            return name, ""  # Its turn will tell.

    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(pool.map(look, names))


def _damaged(records: pa.Table, dataset: Path) -> Iterable[str]:
    lists = records["outputs"].combine_chunks()
    files = lists.flatten()
    owners = pc.list_parent_indices(lists).to_pylist()
    paths, sizes = files.field("path").to_pylist(), files.field("size").to_pylist()
    prefix = f"{dataset}/"
    damaged = set()
    for owner, path, size in zip(owners, paths, sizes, strict=True):
        try:
            sound = os.stat(prefix + path).st_size == size
        except OSError:
            sound = False
        if not sound:
            damaged.add(owner)
    names: list[str] = records["input"].take(pa.array(sorted(damaged), pa.int64())).to_pylist()
    return names
