"""Divide inputs into batches and shards: how many, how large, and who gets which."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from batchmill.errors import OptionError

# A Prefect task run costs about a tenth of a second and a row in its database, whatever is in it.
MAX_SHARDS = 512
MAX_AUTO_BATCH = 32
# More DataLoader workers under one process than this gain nothing: it feeds them all.
MAX_AUTO_WORKERS = 8
# So many batches for each worker even out what single inputs take.
BATCHES_PER_WORKER = 4
# So many shards for each that runs at a time even out what whole shards take.
SHARDS_PER_SLOT = 4


@dataclass(frozen=True, kw_only=True)
class Cores:
    """The cores that a run may use: in all, and on the largest single machine.

    `slots` tells how many shards with so many workers run at a time; by default, the cores do.
    """

    total: int
    node: int
    slots: Callable[[int], int] | None = None

    def slots_for(self, workers: int) -> int:
        """Return how many shards with so many workers run at a time."""
        workers = max(1, workers)
        return self.slots(workers) if self.slots else max(1, self.total // workers)


@dataclass(frozen=True, kw_only=True)
class Batching:
    """What the user asks for; None leaves the choice to batchmill.

    `batch_size` is in inputs, as in torch; `num_workers` are the DataLoader's worker processes in
    each shard, where 0 works in the shard's own process. Raises OptionError.
    """

    batch_size: int | None = None
    num_workers: int | None = None

    def __post_init__(self) -> None:
        # In the words of JSON Schema, by which a form refuses the same.
        if self.batch_size is not None and self.batch_size < 1:
            raise OptionError(f"--batch-size: {self.batch_size} is less than the minimum of 1.")
        if self.num_workers is not None and self.num_workers < 0:
            raise OptionError(f"--num-workers: {self.num_workers} is less than the minimum of 0.")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How inputs are divided.

    `order` lists the pending inputs' indices shard by shard; shard i has those from `bounds[i]`
    up to `bounds[i + 1]`. `slots` shards run at a time, each with `num_workers` workers.
    """

    batch_size: int
    num_workers: int
    slots: int
    order: NDArray[np.int64]
    bounds: tuple[int, ...]

    @property
    def shards(self) -> int:
        """The number of shards."""
        return len(self.bounds) - 1


def parallelism(inputs: int, batch_size: int) -> int:
    """Return how many cores a run can use: as many as it has batches, each the work of one.

    >>> [parallelism(4, batch_size) for batch_size in (1, 2, 4)]
    [4, 2, 1]
    """
    return -(-inputs // batch_size)


def lay_out(sizes: NDArray[np.int64], batching: Batching, cores: Cores) -> Layout:
    """Divide inputs of these `sizes` (bytes) into shards of about the same weight."""
    count = len(sizes)
    workers = batching.num_workers
    if workers is None:
        workers = min(cores.node, MAX_AUTO_WORKERS)
    batch_size = batching.batch_size
    if batch_size is None:
        batch_size = max(1, min(MAX_AUTO_BATCH, count // (cores.total * BATCHES_PER_WORKER)))
    batches = parallelism(count, batch_size)
    workers = min(workers, max(1, batches))
    slots = cores.slots_for(workers)
    fill_all = -(-batches // max(1, workers))
    wanted = min(slots * SHARDS_PER_SLOT, max(slots, fill_all // BATCHES_PER_WORKER))
    shards = max(1, min(wanted, fill_all, MAX_SHARDS))
    order, bounds = _deal(sizes, shards)
    return Layout(
        batch_size=batch_size, num_workers=workers, slots=slots, order=order, bounds=bounds
    )


def _deal(sizes: NDArray[np.int64], shards: int) -> tuple[NDArray[np.int64], tuple[int, ...]]:
    """Deal inputs out to shards, the largest first, back and forth as one deals teams."""
    largest_first = np.argsort(-sizes, kind="stable")
    turn = np.arange(len(sizes))
    place = turn % shards
    shard = np.where((turn // shards) % 2 == 0, place, shards - 1 - place)
    order = largest_first[np.argsort(shard, kind="stable")]
    counts = np.bincount(shard, minlength=shards)
    return order, (0, *np.cumsum(counts).tolist())
