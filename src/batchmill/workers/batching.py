"""Divides the inputs of a DataLoader into batches: the heavier, the smaller."""

import numpy as np
from numpy.typing import NDArray

# No batch is heavier than this fraction of a worker's load, unless a single input is.
_PARTS = 32


def make_batches(
    weights: NDArray[np.int64], batch_size: int, workers: int, *, even: bool = True
) -> list[range]:
    """Divide inputs into batches.

    Args:
        weights: The weight of each input.
        batch_size: The maximum number of inputs per batch.
        workers: The number of workers that share the batches.
        even: True to make batches of heavy inputs smaller.

    Returns:
        The range of inputs of each batch.

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
