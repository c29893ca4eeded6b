"""Assign groups to partitions: by the hash of the group, or within each stratum."""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import xxhash

from batchmill.partitions.partitioning import Groups, Partitioning

# Deficits are rounded to this number of digits: without it, 1.3 - 1 is not equal to 0.3.
_DIGITS = 9


def assign(
    groups: Groups, partitioning: Partitioning, known: Mapping[str, str] | None = None
) -> pa.Array:
    """Return the partition of each row.

    A partition that the manifest names applies to all rows of the group. For other groups, the hash
    decides. With strata, a group keeps its `known` partition, and new groups are assigned to the
    partitions with the largest deficits.
    """
    coded = groups.keys.dictionary_encode()
    keys: list[str] = coded.dictionary.to_pylist()
    fixed = dict(known or {}) if partitioning.stratify is not None else {}
    fixed |= given_by_key(groups)
    if groups.strata is None:
        found = [
            fixed.get(key, hashed)
            for key, hashed in zip(keys, by_hash(keys, partitioning), strict=True)
        ]
    else:
        strata = _stratum_of_each(groups.strata, coded)
        dealt = _deal(keys, strata, fixed, partitioning)
        found = [dealt[key] for key in keys]
    return pa.array(found, pa.string()).take(coded.indices)


def given_by_key(groups: Groups) -> dict[str, str]:
    """Return the partitions that the manifest itself names, by the key of the group."""
    named = groups.given.is_valid()
    pairs = zip(groups.keys.filter(named), groups.given.filter(named), strict=True)
    return {key.as_py(): name.as_py() for key, name in pairs}


def by_hash(keys: Iterable[str], partitioning: Partitioning) -> list[str]:
    """Return the partition of each key, chosen by its hash."""
    # A partition with the share 0 must not get the keys at the end of the interval.
    names = [name for name, share in partitioning.shares.items() if share > 0]
    bounds = np.cumsum([partitioning.shares[name] for name in names])[:-1]
    places = [_place(key, partitioning.seed) for key in keys]
    return [names[index] for index in np.searchsorted(bounds, places, side="right")]


def _place(key: str, seed: int) -> float:
    """Return a key's position in [0, 1)."""
    # XXH3 takes a tenth of BLAKE2b's time. The text is unambiguous: only the key may have a colon.
    number = xxhash.xxh3_64_intdigest(f"partition:{seed}:{key}".encode("utf-8", "surrogateescape"))
    # A float has 53 bits. With all 64 bits, the result could be rounded up to 1.
    return (number >> 11) / 2**53


def _stratum_of_each(strata: pa.Array, coded: pa.DictionaryArray) -> list[str]:
    """Return the stratum of each group: the most frequent one of its rows.

    If two are equally frequent, the first by name counts, so the order of the rows does not matter.
    Rows without a value form a stratum as well.
    """
    counts = Counter(zip(coded.indices.to_pylist(), strata.fill_null("").to_pylist(), strict=True))
    best: dict[int, tuple[int, str]] = {}
    for (group, stratum), count in counts.items():
        best[group] = min(best.get(group, (0, "")), (-count, stratum))
    return [best[group][1] for group in range(len(coded.dictionary))]


def _deal(
    keys: Sequence[str],
    strata: Sequence[str],
    fixed: Mapping[str, str],
    partitioning: Partitioning,
) -> dict[str, str]:
    """Assign the groups that are not `fixed`, in the order of their hashes, in each stratum."""
    members: dict[str, list[str]] = defaultdict(list)
    for key, stratum in zip(keys, strata, strict=True):
        members[stratum].append(key)
    dealt: dict[str, str] = {}
    for group in members.values():
        lacking = {name: share * len(group) for name, share in partitioning.shares.items()}
        new = []
        for key in group:
            if key in fixed:
                dealt[key] = fixed[key]
                lacking[fixed[key]] -= 1
            else:
                new.append((_place(key, partitioning.seed), key))
        # If two deficits are equal, the first partition is chosen. A partition with the share 0 is
        # never chosen: while groups remain, another partition has a larger deficit.
        most = [
            (round(-number, _DIGITS), order, name)
            for order, (name, number) in enumerate(lacking.items())
        ]
        heapq.heapify(most)
        for _, key in sorted(new):
            lack, order, dealt[key] = most[0]
            heapq.heapreplace(most, (round(lack + 1, _DIGITS), order, dealt[key]))
    return dealt
