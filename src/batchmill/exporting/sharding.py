"""Divide samples into shards, so that a small change of the samples changes few shards."""

from collections.abc import Sequence

import numpy as np
import xxhash

# The size of a row and of its headers, about. The row is written beside its file.
_ROW_BYTES = 1024
# A shard has at least this part of the largest size, except for the last one.
_LEAST = 0.5


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
