"""Plan the shards of an export. A small change of the samples changes few shards."""

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import pairwise

import numpy as np
import pyarrow.compute as pc
import xxhash

from batchmill.datasets.exporting.chosen_samples import ExportRows
from batchmill.datasets.exporting.formats import ShardTask, find_format

_KINDS = {
    "image": {"png", "jpg", "jpeg", "webp", "tif", "tiff", "bmp", "gif"},
    "audio": {"wav", "flac", "ogg", "mp3"},
    "text": {"txt", "md"},
}
# The size of a row and of its headers, about. The row is written beside its file.
_ROW_BYTES = 1024
# A shard has at least this part of the largest size, except for the last one.
_LEAST = 0.5


def plan_shards(chosen: ExportRows, to: str, out: str, shard_bytes: int) -> list[ShardTask]:
    """Return the tasks of the shards to have in the end, for chosen samples."""
    shape = find_format(to)
    samples = chosen.samples
    kind = _kind_of(pc.unique(samples["suffix"]).to_pylist())
    files = pc.list_flatten(samples["further"])
    columns, suffixes = (pc.struct_field(files, name) for name in ("column", "suffix"))
    further = {
        column: _kind_of(pc.unique(suffixes.filter(pc.equal(columns, column))).to_pylist())
        for column in chosen.further
    }
    tasks: list[ShardTask] = []
    begin = 0
    # The samples of a split are together.
    for split, count in Counter(samples["split"].to_pylist()).items():
        part = samples.slice(begin, count)
        bounds = shard_bounds(part["size"].to_pylist(), part["key"].to_pylist(), shard_bytes)
        tasks += [
            ShardTask(
                to=to,
                out=out,
                name=shape.shard_name(split or shape.split, number, len(bounds) - 1),
                root=chosen.root,
                are_inputs=chosen.are_inputs,
                kind=kind,
                further=further,
                labels=chosen.labels,
                samples=samples.slice(begin + first, end - first),
                rows=chosen.rows.slice(begin + first, end - first),
            )
            for number, (first, end) in enumerate(pairwise(bounds))
        ]
        begin += count
    return tasks


def _kind_of(suffixes: Collection[str]) -> str:
    """Return the kind of files with these suffixes."""
    return next((kind for kind, known in _KINDS.items() if {*suffixes} <= known), "file")


def shard_bounds(sizes: Sequence[int], keys: Sequence[str], limit: int) -> list[int]:
    """Return the bounds of the shards: shard i has the samples `bounds[i]` to `bounds[i + 1]`.

    A shard ends where the next key has the smallest hash, among the ends that give it half of the
    limit or more. Most ends stay when samples are added, removed or changed. If only a count or a
    size decided, one new sample would move all ends after it.

    Args:
        sizes: The size of each sample in bytes.
        keys: The key of each sample.
        limit: The largest size of a shard in bytes. A larger sample has a shard of its own.

    Returns:
        The bounds, from 0 to the number of samples.
    """
    ends = np.cumsum(np.asarray(sizes, dtype=np.int64) + _ROW_BYTES)
    hashes = [xxhash.xxh3_64_intdigest(f"end {key}".encode()) for key in keys]
    bounds = [0]
    while bounds[-1] < len(ends):
        start = bounds[-1]
        before = int(ends[start - 1]) if start else 0
        most = max(int(np.searchsorted(ends, before + limit, side="right")), start + 1)
        if most == len(ends):
            bounds.append(most)
            break
        least = int(np.searchsorted(ends, before + int(limit * _LEAST))) + 1
        least = min(max(least, start + 1), most)
        bounds.append(least + int(np.argmin(np.array(hashes[least : most + 1], dtype=np.uint64))))
    return bounds
