"""Partitions of a dataset that do not leak: what belongs together falls into one of them.

A group's place is a hash of its key and a seed, in [0, 1), and the shares cut that line: so a group
stays where it is, whatever else is added, removed or put in another order. Within strata, groups
are dealt instead, and what was dealt before stays.
"""

import heapq
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from batchmill.errors import OptionError
from batchmill.options import PartitionOptions, option_name

# The column of the manifest that says it by hand, and that of the table that a run publishes.
COLUMN = "partition"

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_NEAR = 1e-9
# What is lacking of a share is compared with so many: 0.3 is to be 1.3 less 1.
_DIGITS = 9
_EXAMPLE = "Give it as train=0.8,validation=0.1,test=0.1, or in percent: train=80,test=20."


@dataclass(frozen=True, kw_only=True)
class Partitioning:
    """How inputs are divided: `shares` of 1, in this order, by a hash with a `seed`.

    Rows of the manifest that have the same value in the column `group_by` stay together; without
    it, each input is a group of its own. With `stratify`, the groups of each value of that column
    come near the shares.
    """

    shares: Mapping[str, float]
    group_by: str | None = None
    stratify: str | None = None
    seed: int = 0

    def changes_since(self, before: "Partitioning") -> list[str]:
        """Say what of it was another before, a sentence each; the order of the shares counts."""
        pairs = [
            ("--partition", _written(before.shares), _written(self.shares)),
            ("--group-by", before.group_by, self.group_by),
            ("--stratify", before.stratify, self.stratify),
            ("--seed", before.seed, self.seed),
        ]
        return [f"{name} was {was}, and is {now}" for name, was, now in pairs if was != now]


@dataclass(frozen=True, kw_only=True)
class Groups:
    """What a manifest says about the partition of each of its rows.

    `keys` tells the groups apart (a group's value, or an input's name), `strata` is None unless it
    was asked for, `given` is the partition that the manifest itself names, else null.
    """

    keys: pa.Array
    strata: pa.Array | None
    given: pa.Array

    def only(self, mask: Any) -> "Groups":
        """Return what it says about the rows of a mask."""
        columns = (self.keys, self.strata, self.given)
        keys, strata, given = (column and pa.array(column.filter(mask)) for column in columns)
        return Groups(keys=keys, strata=strata, given=given)


def make_partitioning(options: PartitionOptions) -> Partitioning | None:
    """Return the partitioning that options describe; None without partitions.

    Raises OptionError.

    >>> make_partitioning(PartitionOptions(partition="train=80,test=20")).shares
    {'train': 0.8, 'test': 0.2}
    """
    if not options.partition:
        others = [name for name in type(options).model_fields if getattr(options, name)]
        if others:
            raise OptionError(f"{option_name(others[0])} needs --partition. {_EXAMPLE}")
        return None
    return Partitioning(
        shares=_parse_shares(options.partition),
        group_by=options.group_by or None,
        stratify=options.stratify or None,
        seed=options.seed,
    )


def _parse_shares(text: str) -> dict[str, float]:
    shares: dict[str, float] = {}
    for item in text.split(","):
        name, _, number = (part.strip() for part in item.partition("="))
        if not _NAME.fullmatch(name):
            raise OptionError(
                f"--partition {text}: {name!r} is no name. Letters, digits, _ and - may be in it. "
                f"{_EXAMPLE}"
            )
        if name in shares:
            raise OptionError(f"--partition {text}: {name!r} is listed twice. Drop one.")
        try:
            shares[name] = float(number)
        except ValueError:
            shares[name] = math.nan
        if not 0 <= shares[name] < math.inf:
            raise OptionError(
                f"--partition {text}: the share of {name!r} is {number!r}, and must be a number "
                f"from 0 on. {_EXAMPLE}"
            )
    total = math.fsum(shares.values())
    whole = next((whole for whole in (1, 100) if abs(total - whole) <= _NEAR * whole), None)
    if whole is None:
        raise OptionError(
            f"--partition {text}: the shares sum to {total:g}; they must sum to 1 or to 100. "
            f"{_EXAMPLE}"
        )
    return {name: share / whole for name, share in shares.items()}


def _written(shares: Mapping[str, float]) -> str:
    return ",".join(f"{name}={share:.12g}" for name, share in shares.items())


def key_of_group(value: str) -> str:
    """Return the key of the group of rows with this value."""
    return f"group:{value}"


def key_of_input(name: str) -> str:
    """Return the key of an input that is a group of its own; no group of rows has it."""
    return f"input:{name}"


def name_of_key(key: str) -> str:
    """Say for people which group a key is of.

    >>> name_of_key(key_of_group("Anna")), name_of_key(key_of_input("a.wav"))
    ("group 'Anna'", "input 'a.wav'")
    """
    kind, _, name = key.partition(":")
    return f"{kind} {name!r}"


def assign(
    groups: Groups, partitioning: Partitioning, known: Mapping[str, str] | None = None
) -> pa.Array:
    """Return the partition of each row.

    What the manifest names counts, for all rows of its group. Else the hash decides, or, within
    strata, what is `known` of the keys, and then the deal.
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
    """Return the groups of which the manifest itself names the partition."""
    named = groups.given.is_valid()
    pairs = zip(groups.keys.filter(named), groups.given.filter(named), strict=True)
    return {key.as_py(): name.as_py() for key, name in pairs}


def by_hash(keys: Iterable[str], partitioning: Partitioning) -> list[str]:
    """Return the partition that the hash gives to each key."""
    # One with the share 0 gets none, also at the very end of the line.
    names = [name for name, share in partitioning.shares.items() if share > 0]
    bounds = np.cumsum([partitioning.shares[name] for name in names])[:-1]
    places = [_place(key, partitioning.seed) for key in keys]
    return [names[index] for index in np.searchsorted(bounds, places, side="right")]


def _place(key: str, seed: int) -> float:
    """Return a key's place in [0, 1)."""
    # XXH3, for it is a tenth of BLAKE2b's time; the tag and the seed have no colon in them.
    number = xxhash.xxh3_64_intdigest(f"partition:{seed}:{key}".encode("utf-8", "surrogateescape"))
    # The 53 bits that a float holds: with all 64 it could be rounded up to 1.
    return (number >> 11) / 2**53


def _stratum_of_each(strata: pa.Array, coded: pa.DictionaryArray) -> list[str]:
    """Return the stratum of each group: what most of its rows have; of equals, the first by name.

    That does not depend on the order of the rows. No value is a stratum, too.
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
    """Deal the groups that are not `fixed`, in the order of their hashes, within each stratum."""
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
        # Of equals, the first is taken. One with the share 0 never is: as long as some are left,
        # another lacks them.
        most = [
            (round(-number, _DIGITS), order, name)
            for order, (name, number) in enumerate(lacking.items())
        ]
        heapq.heapify(most)
        for _, key in sorted(new):
            lack, order, dealt[key] = most[0]
            heapq.heapreplace(most, (round(lack + 1, _DIGITS), order, dealt[key]))
    return dealt


def count_partitions(partitions: pa.Array, partitioning: Partitioning) -> dict[str, int]:
    """Count the rows of each partition, in the order of the shares."""
    counts = Counter(partitions.to_pylist())
    return {name: counts[name] for name in partitioning.shares}


def count_strata(
    partitions: pa.Array, groups: Groups, partitioning: Partitioning
) -> dict[str, dict[str, int]]:
    """Count the rows of each partition in each stratum; empty without strata."""
    if groups.strata is None:
        return {}
    pairs = zip(groups.strata.fill_null("").to_pylist(), partitions.to_pylist(), strict=True)
    counts = Counter(pairs)
    return {
        stratum: {name: counts[stratum, name] for name in partitioning.shares}
        for stratum in sorted({stratum for stratum, _ in counts})
    }
