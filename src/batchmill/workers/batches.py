"""Divides inputs into batches for a DataLoader."""

import numpy as np
from numpy.typing import NDArray

# No batch is heavier than this fraction of a worker's load, unless a single input is.
_PARTS = 32
# The same for the first batch if files are moved. Later batches are smaller.
_FIRST_PARTS = 4


def make_batches(
    weights: NDArray[np.int64],
    batch_size: int,
    workers: int,
    *,
    even: bool = True,
    shrinking: bool = False,
) -> list[range]:
    """Divide inputs into batches.

    Args:
        weights: The weight of each input.
        batch_size: The maximum number of inputs per batch.
        workers: The number of workers that share the batches.
        even: True to make batches of heavy inputs smaller.
        shrinking: True to begin with large batches. A worker fetches at most one batch ahead, but
            small batches at the end let all workers end at the same time.

    Returns:
        The range of inputs of each batch.

    >>> make_batches(np.array([50, 30, 10, 5, 5] + [1] * 60), batch_size=20, workers=1)[:4]
    [range(0, 1), range(1, 2), range(2, 3), range(3, 4)]
    """
    left = float(weights.sum()) / max(1, workers)
    lightest = left / _PARTS if even else np.inf
    heaviest = max(lightest, left / _FIRST_PARTS) if shrinking else lightest
    batches = []
    start, load = 0, 0
    for index, weight in enumerate(weights.tolist()):
        if index > start and (index - start == batch_size or load + weight > heaviest):
            batches.append(range(start, index))
            left -= load / max(1, workers)
            heaviest = max(lightest, left / _FIRST_PARTS) if shrinking else lightest
            start, load = index, 0
        load += weight
    return [*batches, range(start, len(weights))] if len(weights) else []
