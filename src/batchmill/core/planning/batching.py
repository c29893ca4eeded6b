"""Divide inputs into batches and shards."""

import heapq
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from batchmill.core.options.job_options import ExecutionOptions
from batchmill.core.sizes import counted

# Each Prefect task run costs about a tenth of a second and a row in Prefect's database.
MAX_SHARDS = 512
# A batch costs a fifth of a millisecond. Larger batches share this cost, even if inputs are tiny.
MAX_AUTO_BATCH = 256
# If the step works on whole batches, each batch must fit into memory.
MAX_AUTO_WHOLE_BATCH = 32
# More DataLoader workers gain nothing, because one process feeds all of them.
MAX_AUTO_WORKERS = 8
# A worker of an async step executes this number of inputs at a time. One or two workers are enough
# for steps that wait.
AUTO_CONCURRENCY = 32
MAX_AUTO_ASYNC_WORKERS = 2
# Each GPU has one shard, whose workers must load as fast as the GPU computes.
MAX_AUTO_GPU_WORKERS = 32
# Several batches per core balance inputs of different durations. Steps on whole batches get fewer,
# because a model is faster with larger batches.
BATCHES_PER_CORE = 64
# A worker fetches the inputs of at most one batch ahead, so small batches would keep few fetches
# running. The last batches of a shard are smaller than this number gives.
REMOTE_BATCHES_PER_CORE = 4
WHOLE_BATCHES_PER_CORE = 4
# A shard takes half a second to start and stop. It needs at least this number of rounds to be worth
# that. In a round, each worker of the shard processes up to _INPUTS_PER_ROUND inputs.
_ROUNDS_PER_SHARD, _INPUTS_PER_ROUND = 4, 32
# The cost of an empty input, in bytes.
_INPUT_BYTES = 100_000
# The largest inputs are assigned one by one, this number per shard. The others follow in blocks.
_DEALT_SINGLY = 64
_AS_YOU_SAY = "as given"
# If several shards run at a time, this number per slot balances shards of different durations.
SHARDS_PER_SLOT = 4
# A shard's process uses a kilobyte or more of memory per input.
MAX_SHARD_INPUTS = 100_000


@dataclass(frozen=True, kw_only=True)
class Cores:
    """The cores that a run may use.

    Attributes:
        total: The cores of all machines.
        node: The cores of the largest machine.
        may_grow: True if cores may be added, as in a Ray cluster that grows with its queue.
        slots: Returns how many shards run at a time, given the workers per shard. None: as many as
            the cores allow, or one for each GPU.
        gpus: The number of GPUs that the shards use. 0: none, or the number is unknown.
    """

    total: int
    node: int
    may_grow: bool = False
    slots: Callable[[int], int] | None = None
    gpus: int = 0

    def slots_for(self, workers: int) -> int:
        """Return how many shards with this number of workers run at a time."""
        if self.gpus:
            return self.gpus
        workers = max(1, workers)
        return self.slots(workers) if self.slots else max(1, self.total // workers)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The division of inputs into shards.

    Attributes:
        batch_size: Inputs per batch.
        num_workers: Workers per shard.
        order: The indices of the pending inputs, shard by shard.
        bounds: Shard i has the inputs `order[bounds[i]:bounds[i + 1]]`.
        reasons: One line per choice, with its reason.
        concurrency: Inputs at a time in each worker.
        pace_seconds: The shortest time between the begin of two attempts in a shard. 0: no limit.
        running: The number of shards that run at a time, and share the limit.
    """

    batch_size: int
    num_workers: int
    order: NDArray[np.int64]
    bounds: tuple[int, ...]
    reasons: tuple[str, ...] = ()
    concurrency: int = 1
    pace_seconds: float = 0.0
    running: int = 1

    @property
    def shards(self) -> int:
        """The number of shards."""
        return len(self.bounds) - 1


def cores_of_machine(cores: int, gpus: int = 0) -> Cores:
    """Return the cores of one machine.

    Args:
        cores: Their number.
        gpus: The number of GPUs that the step can use. Each shard that runs has one of them, and an
            equal part of the cores.
    """
    return Cores(total=cores, node=max(1, cores // max(1, gpus)), gpus=gpus)


def own_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the number of cores that this process may use.

    A container may use fewer cores than its machine has. `cpu.max` in the folder of its control
    group (cgroup v2) then holds a quota and a period in microseconds.
    """
    # macOS and Windows, where datasets can be read, do not have this call.
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, math.ceil(int(quota) / int(period))))


def parallelism(inputs: int, batch_size: int) -> int:
    """Return how many cores a run can use: one per batch.

    >>> [parallelism(4, batch_size) for batch_size in (1, 2, 4)]
    [4, 2, 1]
    """
    return -(-inputs // batch_size)


def input_weights(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the weights of inputs of these sizes (bytes, -1 for a missing file).

    >>> input_weights(np.array([-1, 0, 5])).tolist()
    [100000, 100000, 100005]
    """
    return np.maximum(sizes, 0) + _INPUT_BYTES


def plan_shards(
    sizes: NDArray[np.int64],
    execution: ExecutionOptions,
    cores: Cores,
    *,
    whole_batches: bool = False,
    remote: bool = False,
    is_async: bool = False,
) -> Layout:
    """Divide inputs into shards of about the same weight.

    Args:
        sizes: The size of each input in bytes.
        execution: The user's choices.
        cores: The cores that the run may use.
        whole_batches: True if the step works on whole batches.
        remote: True if inputs are fetched or outputs are uploaded.
        is_async: True if the step is async.

    Returns:
        The division.
    """
    count = len(sizes)
    workers, why_workers = execution.num_workers, _AS_YOU_SAY
    if workers is None:
        most = MAX_AUTO_ASYNC_WORKERS if is_async else MAX_AUTO_WORKERS
        share = "one per core of a machine"
        if cores.gpus:
            most, share = MAX_AUTO_GPU_WORKERS, "an equal part of the cores for each GPU"
        workers = min(cores.node, most)
        why_workers = f"{share}, at most {most}"
    batch_size, why_batch = execution.batch_size, _AS_YOU_SAY
    if batch_size is None:
        most = MAX_AUTO_WHOLE_BATCH if whole_batches else MAX_AUTO_BATCH
        each = REMOTE_BATCHES_PER_CORE if remote else BATCHES_PER_CORE
        each = WHOLE_BATCHES_PER_CORE if whole_batches else each
        batch_size = max(1, min(most, count // (cores.total * each)))
        why_batch = f"at least {each} batches per core if possible, at most {most} inputs per batch"
    batches = parallelism(count, batch_size)
    if workers > max(1, batches):
        workers, why_workers = max(1, batches), "limited to the number of batches"
    slots = cores.slots_for(workers)
    # Small automatic batches must not reduce the number of inputs per shard.
    granule = execution.batch_size or max(
        1, min(_INPUTS_PER_ROUND, count // (cores.total * _ROUNDS_PER_SHARD))
    )
    rounds = -(-parallelism(count, granule) // max(1, workers))
    shards, why_shards = _count_shards(count, rounds, slots, may_grow=cores.may_grow)
    order, bounds = _deal(sizes, shards)
    running = shards if cores.may_grow else min(slots, shards)
    rate = execution.rate_per_second
    concurrency = (execution.concurrency or AUTO_CONCURRENCY) if is_async else 1
    reasons = [
        f"num_workers {workers}: {why_workers}",
        f"batch_size {batch_size}: {why_batch}",
        f"shards {shards}: {why_shards}",
    ]
    if is_async:
        reasons.append(
            f"concurrency {concurrency}: {running * workers * concurrency:,} inputs at a time, in "
            f"{counted(running, 'shard')} of {counted(workers, 'worker')}"
        )
    return Layout(
        batch_size=batch_size,
        num_workers=workers,
        order=order,
        bounds=bounds,
        concurrency=concurrency,
        # An even share of the limit for each shard that may run at a time.
        pace_seconds=running / rate if rate else 0.0,
        running=running,
        reasons=tuple(reasons),
    )


def _count_shards(count: int, rounds: int, slots: int, *, may_grow: bool) -> tuple[int, str]:
    """Return the number of shards, and the reason. `rounds` is the number of rounds of one slot."""
    if slots == 1 and not may_grow:
        wanted, why = 1, "the cores are enough for one shard at a time"
    else:
        wanted = min(slots * SHARDS_PER_SLOT, max(slots, rounds // _ROUNDS_PER_SHARD))
        why = f"{slots:,} can run at a time, and at most {slots * SHARDS_PER_SLOT:,} are planned"
    if count > wanted * MAX_SHARD_INPUTS:
        wanted = parallelism(count, MAX_SHARD_INPUTS)
        why = f"at most {MAX_SHARD_INPUTS:,} inputs per shard"
    if wanted > MAX_SHARDS:
        wanted, why = MAX_SHARDS, "the maximum number of shards"
    if wanted > rounds:
        wanted, why = max(1, rounds), "limited so that each worker has inputs"
    return wanted, why


def _deal(sizes: NDArray[np.int64], shards: int) -> tuple[NDArray[np.int64], tuple[int, ...]]:
    """Assign inputs to shards, the largest first, each to the shard with the smallest load."""
    weights = input_weights(sizes)
    order = np.argsort(-weights, kind="stable")
    singly = min(len(order), shards * _DEALT_SINGLY)
    block = max(1, -(-(len(order) - singly) // (shards * _DEALT_SINGLY)))
    starts = np.concatenate([np.arange(singly), np.arange(singly, len(order), block)])
    loads = np.add.reduceat(weights[order], starts).tolist()
    del weights  # It may be large.
    lengths = np.diff(starts, append=len(order)).tolist()
    # No shard gets many more inputs than the others, even if its inputs are light.
    most = 2 * -(-len(order) // shards)
    heap = [(0, 0, shard) for shard in range(shards)]
    owners = []
    for load, length in zip(loads, lengths, strict=True):
        has, held, shard = heapq.heappop(heap)
        owners.append(shard)
        if held + length < most or not heap:
            heapq.heappush(heap, (has + load, held + length, shard))
    shard_of = np.repeat(np.array(owners, np.uint16), np.array(lengths, np.int64))
    counts = np.bincount(shard_of, minlength=shards)
    return order[np.argsort(shard_of, kind="stable")], (0, *np.cumsum(counts).tolist())
