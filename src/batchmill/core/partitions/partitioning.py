"""Assign the inputs of a dataset to partitions: all rows of a group get the same partition.

The hash of a group's key and a seed gives a number in [0, 1), and the shares divide this interval.
So a group keeps its partition if other inputs are added, removed or reordered. With strata, groups
are assigned one after the other within each stratum, and earlier assignments are kept.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import xxhash

from batchmill.core.options.job_options import PartitionOptions
from batchmill.core.options.validation import option_name
from batchmill.errors import OptionError

# The group and the stratum of each row of a manifest.
GROUPS = pa.schema(
    [
        # The key, made from the group's value or the input's name.
        ("group", pa.string()),
        # Null in each row without `stratify`.
        ("stratum", pa.string()),
        # The partition that the manifest itself names. Null if it names no partition.
        ("given", pa.string()),
    ]
)
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_NEAR = 1e-9
# Deficits are rounded to this number of digits: without it, 1.3 - 1 is not equal to 0.3.
_DIGITS = 9
_EXAMPLE = (
    "Example: --partition train=0.8,validation=0.1,test=0.1, or in percent: train=80,test=20."
)


@dataclass(frozen=True, kw_only=True)
class Partitioning:
    """How inputs are divided into partitions.

    Attributes:
        shares: The share of each partition. They sum to 1, and their order matters.
        group_by: Manifest column. Rows with the same value are one group. If None, each input is a
            separate group.
        stratify: Manifest column. The groups of each value are divided close to the shares.
        seed: Seed of the hash.
    """

    shares: Mapping[str, float]
    group_by: str | None = None
    stratify: str | None = None
    seed: int = 0

    def changes_since(self, before: "Partitioning") -> list[str]:
        """Return a text for each setting that changed. The order of the shares is compared, too."""
        pairs = [
            ("--partition", _written(before.shares), _written(self.shares)),
            ("--group-by", before.group_by, self.group_by),
            ("--stratify", before.stratify, self.stratify),
            ("--seed", before.seed, self.seed),
        ]
        return [f"{name} was {was}, and is {now}" for name, was, now in pairs if was != now]


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
                f"--partition {text}: {name!r} is not a valid name. Use letters, digits, _ and -. "
                f"{_EXAMPLE}"
            )
        if name in shares:
            raise OptionError(f"--partition {text}: {name!r} is listed twice. Remove one.")
        try:
            shares[name] = float(number)
        except ValueError:
            shares[name] = math.nan
        if not 0 <= shares[name] < math.inf:
            raise OptionError(
                f"--partition {text}: the share of {name!r} is {number!r}, but must be a number, "
                f"0 or more. {_EXAMPLE}"
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
    """Return the key of an input that is a separate group. No group of rows has this key."""
    return f"input:{name}"


def name_of_key(key: str) -> str:
    """Return a readable name of the group with this key.

    >>> name_of_key(key_of_group("Anna")), name_of_key(key_of_input("a.wav"))
    ("group 'Anna'", "input 'a.wav'")
    """
    kind, _, name = key.partition(":")
    return f"{kind} {name!r}"


def count_partitions(partitions: pa.Array, partitioning: Partitioning) -> dict[str, int]:
    """Count the rows of each partition, in the order of the shares."""
    counts = Counter(partitions.to_pylist())
    return {name: counts[name] for name in partitioning.shares}


def uneven_partitions(counts: Mapping[str, int], partitioning: Partitioning) -> list[str]:
    """Return a text for each partition whose size is far from its share.

    A partition is far from its share if it is empty, or if the difference is more than half of the
    share. Partitions with the share 0 are not reported.

    >>> options = PartitionOptions(partition="train=80,test=20")
    >>> uneven_partitions({"train": 9, "test": 0}, make_partitioning(options))
    ["partition 'test' has no inputs, but its share is 20 %"]
    """
    total = sum(counts.values())
    texts = []
    for name, share in partitioning.shares.items():
        count = counts.get(name, 0)
        if share and total and abs(count / total - share) > share / 2 + _NEAR:
            size = f"{100 * count / total:.3g} % of the inputs" if count else "no inputs"
            texts.append(f"partition {name!r} has {size}, but its share is {100 * share:.3g} %")
    return texts


def count_strata(
    partitions: pa.Array, groups: pa.Table, partitioning: Partitioning
) -> dict[str, dict[str, int]]:
    """Count the rows of each partition in each stratum. The result is empty without strata."""
    if partitioning.stratify is None:
        return {}
    pairs = zip(groups["stratum"].fill_null("").to_pylist(), partitions.to_pylist(), strict=True)
    counts = Counter(pairs)
    return {
        stratum: {name: counts[stratum, name] for name in partitioning.shares}
        for stratum in sorted({stratum for stratum, _ in counts})
    }


def assign(
    groups: pa.Table, partitioning: Partitioning, known: Mapping[str, str] | None = None
) -> pa.Array:
    """Return the partition of each row.

    A partition that the manifest names applies to all rows of the group. For other groups, the hash
    decides. With strata, a group keeps its `known` partition, and new groups are assigned to the
    partitions with the largest deficits.
    """
    coded = groups["group"].combine_chunks().dictionary_encode()
    keys: list[str] = coded.dictionary.to_pylist()
    named = given_by_key(groups)
    if partitioning.stratify is None:
        pairs = zip(keys, by_hash(keys, partitioning), strict=True)
        partitions = [named.get(key, hashed) for key, hashed in pairs]
    else:
        strata = _stratum_of_each(groups["stratum"], coded)
        dealt = _deal(keys, strata, {**(known or {}), **named}, partitioning)
        partitions = [dealt[key] for key in keys]
    return pa.array(partitions, pa.string()).take(coded.indices)


def given_by_key(groups: pa.Table) -> dict[str, str]:
    """Return the partitions that the manifest itself names, by the key of the group."""
    named = groups.filter(groups["given"].is_valid())
    return dict(zip(named["group"].to_pylist(), named["given"].to_pylist(), strict=True))


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


def _stratum_of_each(strata: pa.ChunkedArray, coded: pa.DictionaryArray) -> list[str]:
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
    keys: Sequence[str], strata: Sequence[str], fixed: Mapping[str, str], partitioning: Partitioning
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
        lacking = {name: round(number, _DIGITS) for name, number in lacking.items()}
        for _, key in sorted(new):
            # If two deficits are equal, the first partition is chosen. A partition with the share 0
            # is never chosen: while groups remain, another partition has a larger deficit.
            most = max(lacking, key=lacking.__getitem__)
            lacking[most] = round(lacking[most] - 1, _DIGITS)
            dealt[key] = most
    return dealt
