"""Divide inputs into batches and shards: how many, how large, and who gets which."""

import heapq
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from batchmill.options import ExecutionOptions

# A Prefect task run costs about a tenth of a second and a row in its database, whatever is in it.
MAX_SHARDS = 512
# A batch costs a fifth of a millisecond, which so many inputs of the least kind share.
MAX_AUTO_BATCH = 256
# Of a step that works on whole batches, each must fit into memory.
MAX_AUTO_WHOLE_BATCH = 32
# More DataLoader workers under one process than this gain nothing: it feeds them all.
MAX_AUTO_WORKERS = 8
# So many batches for each core even out what single inputs take; of whole batches, fewer do, for
# the larger they are, the faster a model is.
BATCHES_PER_CORE = 64
WHOLE_BATCHES_PER_CORE = 4
# A shard takes half a second to begin and to end: with less than so many rounds, in each of which
# all its workers have up to so many inputs, it is not worth that.
_ROUNDS_PER_SHARD, _INPUTS_PER_ROUND = 4, 32
# No batch is heavier than such a part of what a worker has to do, unless a single input is.
_PARTS = 32
# What an input takes that has next to no bytes, in bytes.
_INPUT_BYTES = 100_000
# So many inputs for each shard are dealt one by one, the largest first; of the others, blocks.
_DEALT_SINGLY = 64
_AS_YOU_SAY = "as you say"
# Where several shards may run at a time, so many for each even out what whole shards take.
SHARDS_PER_SLOT = 4
# A shard's process holds a kilobyte or more for each of its inputs.
MAX_SHARD_INPUTS = 100_000


@dataclass(frozen=True, kw_only=True)
class Cores:
    """The cores that a run may use: in all, and on the largest single machine.

    `slots` tells how many shards with so many workers run at a time; by default, the cores do.
    `may_grow` tells whether others may come: a Ray cluster grows by what waits for a place.
    """

    total: int
    node: int
    may_grow: bool = False
    slots: Callable[[int], int] | None = None

    def slots_for(self, workers: int) -> int:
        """Return how many shards with so many workers run at a time."""
        workers = max(1, workers)
        return self.slots(workers) if self.slots else max(1, self.total // workers)


@dataclass(frozen=True, kw_only=True)
class Batching:
    """What the user asks for; None leaves the choice to batchmill.

    `batch_size` is in inputs, `num_workers` in DataLoader worker processes per shard.
    """

    batch_size: int | None = None
    num_workers: int | None = None
    # Why this number of workers.
    why_workers: str = _AS_YOU_SAY

    @classmethod
    def from_options(cls, options: ExecutionOptions, why_workers: str = "") -> Self:
        """Return the batching that options describe, in which "auto" has been replaced."""
        workers = options.num_workers
        return cls(
            batch_size=options.batch_size,
            num_workers=None if workers == "auto" else workers,
            why_workers=why_workers or _AS_YOU_SAY,
        )


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How inputs are divided.

    `order` lists the pending inputs' indices shard by shard; shard i has those from `bounds[i]`
    up to `bounds[i + 1]`. `slots` shards run at a time, each with `num_workers` workers. `reasons`
    say why, for each choice in a sentence.
    """

    batch_size: int
    num_workers: int
    slots: int
    order: NDArray[np.int64]
    bounds: tuple[int, ...]
    reasons: tuple[str, ...] = ()

    @property
    def shards(self) -> int:
        """The number of shards."""
        return len(self.bounds) - 1


def own_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the number of cores that this process may use.

    A container may have a share of fewer cores than its machine shows: `cpu.max` in the folder of
    its control group (cgroup v2) then holds a quota and a period, in microseconds.
    """
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, math.ceil(int(quota) / int(period))))


def parallelism(inputs: int, batch_size: int) -> int:
    """Return how many cores a run can use: as many as it has batches, each the work of one.

    >>> [parallelism(4, batch_size) for batch_size in (1, 2, 4)]
    [4, 2, 1]
    """
    return -(-inputs // batch_size)


def input_weights(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return what inputs of these sizes (bytes, -1 for one that is not there) weigh in a division.

    >>> input_weights(np.array([-1, 0, 5])).tolist()
    [100000, 100000, 100005]
    """
    return np.maximum(sizes, 0) + _INPUT_BYTES


def make_batches(
    weights: NDArray[np.int64], batch_size: int, workers: int, *, even: bool = True
) -> list[range]:
    """Cut inputs into batches of so many; if they are to be `even`, of fewer where those are heavy.

    >>> make_batches(np.array([50, 30, 10, 5, 5] + [1] * 60), batch_size=20, workers=1)[:4]
    [range(0, 1), range(1, 2), range(2, 3), range(3, 4)]
    """
    heaviest = weights.sum() / (max(1, workers) * _PARTS) if even else np.inf
    batches = []
    start, load = 0, 0
    for index, weight in enumerate(weights.tolist()):
        if index > start and (index - start == batch_size or load + weight > heaviest):
            batches.append(range(start, index))
            start, load = index, 0
        load += weight
    return [*batches, range(start, len(weights))] if len(weights) else []


def plan_shards(
    sizes: NDArray[np.int64], batching: Batching, cores: Cores, *, whole_batches: bool = False
) -> Layout:
    """Divide inputs of these `sizes` (bytes) into shards of about the same weight.

    With `whole_batches`, the step works on a batch at a time.
    """
    count = len(sizes)
    workers, why_workers = batching.num_workers, batching.why_workers
    if workers is None:
        workers = min(cores.node, MAX_AUTO_WORKERS)
        why_workers = f"one for each core of a machine, {MAX_AUTO_WORKERS} at most"
    batch_size, why_batch = batching.batch_size, _AS_YOU_SAY
    if batch_size is None:
        most = MAX_AUTO_WHOLE_BATCH if whole_batches else MAX_AUTO_BATCH
        each = WHOLE_BATCHES_PER_CORE if whole_batches else BATCHES_PER_CORE
        batch_size = max(1, min(most, count // (cores.total * each)))
        why_batch = (
            f"{each} batches or more for each core where inputs suffice, {most} inputs at most"
        )
    batches = parallelism(count, batch_size)
    if workers > max(1, batches):
        workers, why_workers = max(1, batches), "there are no more batches"
    slots = cores.slots_for(workers)
    # However small batches are made, to even out what inputs take, a shard is worth as much.
    granule = batching.batch_size or max(
        1, min(_INPUTS_PER_ROUND, count // (cores.total * _ROUNDS_PER_SHARD))
    )
    rounds = -(-parallelism(count, granule) // max(1, workers))
    shards, why_shards = _count_shards(count, rounds, slots, may_grow=cores.may_grow)
    order, bounds = _deal(sizes, shards)
    return Layout(
        batch_size=batch_size,
        num_workers=workers,
        slots=slots,
        order=order,
        bounds=bounds,
        reasons=(
            f"num_workers {workers}: {why_workers}",
            f"batch_size {batch_size}: {why_batch}",
            f"shards {shards}: {why_shards}",
        ),
    )


def _count_shards(count: int, rounds: int, slots: int, *, may_grow: bool) -> tuple[int, str]:
    """Return the number of shards and why; in a round, each worker of a slot has some inputs."""
    if slots == 1 and not may_grow:
        wanted, why = 1, "one at a time, with all workers"
    else:
        wanted = min(slots * SHARDS_PER_SLOT, max(slots, rounds // _ROUNDS_PER_SHARD))
        why = f"{slots:,} at a time; {SHARDS_PER_SLOT} for each where inputs suffice"
    if count > wanted * MAX_SHARD_INPUTS:
        wanted, why = -(-count // MAX_SHARD_INPUTS), f"{MAX_SHARD_INPUTS:,} inputs each, at most"
    if wanted > MAX_SHARDS:
        wanted, why = MAX_SHARDS, "Prefect and Ray are spared more"
    if wanted > rounds:
        wanted, why = max(1, rounds), "there are no more batches for all workers"
    return wanted, why


def _deal(sizes: NDArray[np.int64], shards: int) -> tuple[NDArray[np.int64], tuple[int, ...]]:
    """Deal inputs out to shards, the largest first, each to the one that has the least so far."""
    weights = input_weights(sizes)
    order = np.argsort(-weights, kind="stable")
    singly = min(len(order), shards * _DEALT_SINGLY)
    block = max(1, -(-(len(order) - singly) // (shards * _DEALT_SINGLY)))
    starts = np.concatenate([np.arange(singly), np.arange(singly, len(order), block)])
    loads = np.add.reduceat(weights[order], starts).tolist()
    lengths = np.diff(starts, append=len(order)).tolist()
    # No shard holds many more than the others, however light they are.
    most = 2 * -(-len(order) // shards)
    heap = [(0, 0, shard) for shard in range(shards)]
    owners = []
    for load, length in zip(loads, lengths, strict=True):
        has, held, shard = heapq.heappop(heap)
        owners.append(shard)
        if held + length < most or not heap:
            heapq.heappush(heap, (has + load, held + length, shard))
    shard_of = np.repeat(np.array(owners, np.int64), np.array(lengths, np.int64))
    counts = np.bincount(shard_of, minlength=shards)
    return order[np.argsort(shard_of, kind="stable")], (0, *np.cumsum(counts).tolist())
