"""Choose a sample of the pending inputs, so that a run measures them before all others.

The sample is stratified: by size first, because the size determines most of the time and the memory
of an input, and within a class of sizes by suffix, folder and label.
"""

from dataclasses import replace
from os.path import splitext
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from batchmill.core.digests import digest
from batchmill.core.manifest import Manifest
from batchmill.core.planning.batching import input_weights
from batchmill.core.planning.plan import Plan
from batchmill.core.urls import last_part, parent

# A smaller number says little about the inputs of a class.
_LEAST_PER_CLASS = 2
# Only this number of inputs of a class are candidates. It limits the time for millions of inputs.
_CANDIDATES = 20_000
_LABEL = "label"


def size_classes(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the class of each size in bytes. The sizes of a class differ at most by a factor of 4.

    >>> size_classes(np.array([-1, 0, 1, 3, 4, 4_000_000])).tolist()
    [-1, 0, 1, 1, 2, 11]
    """
    classes = 1 + np.log2(np.maximum(sizes, 1)).astype(np.int64) // 2
    return np.where(sizes > 0, classes, np.minimum(sizes, 0))


def sampled(plan: Plan, manifest: Manifest, count: int) -> Plan:
    """Return a plan that executes only a sample of `count` inputs. The others are its `left`."""
    if len(plan.pending) <= count:
        return plan
    columns, labels = manifest.manifest_columns, None
    if _LABEL in columns.column_names:
        labels = columns[_LABEL].take(plan.pending["position"])
    is_chosen = np.zeros(len(plan.pending), bool)
    is_chosen[choose_sample(plan.pending, labels, count)] = True
    return replace(
        plan, pending=plan.pending.filter(is_chosen), left=plan.pending.filter(~is_chosen)
    )


def random_sample(rows: int, count: int, seed: int) -> NDArray[np.int64]:
    """Return the positions of a random sample, in ascending order. All rows have the same chance.

    Args:
        rows: The number of rows to choose from.
        count: The number of rows to choose. If there are not more, all are chosen.
        seed: The seed. The same seed gives the same sample.
    """
    chosen = np.random.default_rng(seed).choice(rows, min(count, rows), replace=False)
    return np.sort(chosen)


def choose_sample(
    pending: pa.Table, labels: pa.ChunkedArray | None, count: int
) -> NDArray[np.int64]:
    """Return the rows of a sample. It is the same in every process.

    Args:
        pending: The inputs, with the columns `input` and `size`.
        labels: The label of each input, if the manifest has labels.
        count: The number of inputs to choose, fewer than there are.
    """
    sizes = pending["size"].to_numpy()
    classes = size_classes(sizes)
    known, counts = np.unique(classes, return_counts=True)
    weights = np.array([input_weights(sizes[classes == group]).sum() for group in known])
    chosen = []
    for group, quota in zip(known, _quotas(counts, weights, count), strict=True):
        rows = np.flatnonzero(classes == group)
        rows = rows[_spread(len(rows), min(len(rows), max(quota, _CANDIDATES)))]
        names = pending["input"].take(pa.array(rows)).to_pylist()
        tags = labels.take(pa.array(rows)).to_pylist() if labels is not None else [""] * len(rows)
        keys = [_stratum(name, label) for name, label in zip(names, tags, strict=True)]
        order = sorted(range(len(rows)), key=keys.__getitem__)
        chosen.append(rows[np.array(order)[_spread(len(rows), quota)]])
    return np.sort(np.concatenate(chosen))


def _quotas(counts: NDArray[np.int64], weights: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return the number of inputs to choose of each class, `count` together.

    One half follows the number of inputs, and the other half their weights, because a few large
    inputs can take most of the time.
    """
    wanted = count * (counts / counts.sum() + weights / weights.sum()) / 2
    least = np.maximum(wanted.astype(np.int64), _LEAST_PER_CLASS)
    quotas: NDArray[np.int64] = np.minimum(counts, least)
    while quotas.sum() > count:
        quotas[np.argmax(np.where(quotas > 0, quotas - wanted, -np.inf))] -= 1
    while quotas.sum() < count:
        quotas[np.argmax(np.where(quotas < counts, wanted - quotas, -np.inf))] += 1
    return quotas


def _spread(count: int, number: int) -> NDArray[np.int64]:
    """Return `number` positions that are spread evenly over `count`."""
    return ((np.arange(number) + 0.5) * count / max(1, number)).astype(np.int64)


def _stratum(name: str, label: Any) -> tuple[str, str, str, str]:
    suffix = splitext(last_part(name))[1].lower()
    return suffix, parent(name), str(label), digest("sample", name)
