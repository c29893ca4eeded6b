"""Assign the inputs of a dataset to partitions: all rows of a group get the same partition.

The hash of a group's key and a seed gives a number in [0, 1), and the shares divide this interval.
So a group keeps its partition if other inputs are added, removed or reordered. With strata, groups
are assigned one after the other within each stratum, and earlier assignments are kept.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from batchmill.errors import OptionError
from batchmill.options.base import option_name
from batchmill.options.groups import PartitionOptions

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_NEAR = 1e-9
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


@dataclass(frozen=True, kw_only=True)
class Groups:
    """The group and the stratum of each row of a manifest.

    Attributes:
        keys: Key of the row's group, made from the group's value or the input's name.
        strata: Stratum of each row. None without `stratify`.
        given: Partition that the manifest itself names. Null if it names no partition.
    """

    keys: pa.Array
    strata: pa.Array | None
    given: pa.Array

    def followed_by(self, others: "Groups") -> "Groups":
        """Return these rows, and then the rows of others."""
        strata = [part for part in (self.strata, others.strata) if part is not None]
        return Groups(
            keys=pa.concat_arrays([self.keys, others.keys]),
            strata=pa.concat_arrays(strata) if strata else None,
            given=pa.concat_arrays([self.given, others.given]),
        )

    def only(self, mask: Any) -> "Groups":
        """Return the rows that a mask selects."""
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
        if not total or abs(count / total - share) <= share / 2 + _NEAR:
            continue
        found = f"{100 * count / total:.3g} % of the inputs" if count else "no inputs"
        if share:
            texts.append(f"partition {name!r} has {found}, but its share is {100 * share:.3g} %")
    return texts


def count_strata(
    partitions: pa.Array, groups: Groups, partitioning: Partitioning
) -> dict[str, dict[str, int]]:
    """Count the rows of each partition in each stratum. The result is empty without strata."""
    if groups.strata is None:
        return {}
    pairs = zip(groups.strata.fill_null("").to_pylist(), partitions.to_pylist(), strict=True)
    counts = Counter(pairs)
    return {
        stratum: {name: counts[stratum, name] for name in partitioning.shares}
        for stratum in sorted({stratum for stratum, _ in counts})
    }
