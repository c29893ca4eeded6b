"""Plan the shards of an export: their names, and the samples of each."""

from collections import Counter
from collections.abc import Callable, Collection
from itertools import pairwise
from typing import NamedTuple

import pyarrow.compute as pc

from batchmill.exporting.formats import find_format
from batchmill.exporting.rows import ExportRows
from batchmill.exporting.shard import ShardTask
from batchmill.exporting.sharding import shard_bounds

_KINDS = {
    "image": {"png", "jpg", "jpeg", "webp", "tif", "tiff", "bmp", "gif"},
    "audio": {"wav", "flac", "ogg", "mp3"},
}


class ShardPlan(NamedTuple):
    """The shards to have in the end, and a function that returns the task of each."""

    names: list[str]
    task: Callable[[int], ShardTask]


def plan_shards(chosen: ExportRows, to: str, out: str, shard_bytes: int) -> ShardPlan:
    """Return the plan for chosen samples."""
    shape = find_format(to)
    samples = chosen.samples
    kind = _kind_of(pc.unique(samples["suffix"]).to_pylist())
    files = pc.list_flatten(samples["further"]).combine_chunks()
    suffixes: dict[str, set[str]] = {column: set() for column in chosen.further}
    columns = files.field("column").to_pylist(), files.field("suffix").to_pylist()
    for column, suffix in zip(*columns, strict=True):
        suffixes[column].add(suffix)
    ranges: list[tuple[str, int, int]] = []
    begin = 0
    # The samples of a split are together.
    for split, count in Counter(samples["split"].to_pylist()).items():
        part = samples.slice(begin, count)
        bounds = shard_bounds(part["size"].to_pylist(), part["key"].to_pylist(), shard_bytes)
        for number, (first, end) in enumerate(pairwise(bounds)):
            name = shape.shard_name(split or shape.split, number, len(bounds) - 1)
            ranges.append((name, begin + first, end - first))
        begin += count
    needed = samples.select(["key", "suffix", "place", "content", "further"])

    def task(number: int) -> ShardTask:
        name, first, count = ranges[number]
        return ShardTask(
            to=to,
            out=out,
            name=name,
            root=chosen.root,
            are_inputs=chosen.are_inputs,
            kind=kind,
            further={column: _kind_of(found) for column, found in suffixes.items()},
            samples=needed.slice(first, count),
            rows=chosen.rows.slice(first, count),
        )

    return ShardPlan([name for name, _, _ in ranges], task)


def _kind_of(suffixes: Collection[str]) -> str:
    """Return the kind of files with these suffixes."""
    return next((kind for kind, known in _KINDS.items() if {*suffixes} <= known), "file")
