"""Read the groups of a manifest's inputs, and the partitions that the manifest assigns."""

from collections.abc import Callable, Mapping, Sequence

import pandas as pd
import pyarrow as pa

from batchmill.core.layout import MADE_FROM, ORIGINAL_INPUT, PARTITION_COLUMN
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.partitions.partitioning import GROUPS, Partitioning, key_of_group, key_of_input
from batchmill.core.partitions.record import assignment_of
from batchmill.core.storage import open_store
from batchmill.core.table_cells import is_missing, texts_of


def missing_columns(frame: pd.DataFrame, partitioning: Partitioning) -> list[str]:
    """Return a fault for each column that a partitioning needs and the manifest lacks.

    Args:
        frame: The manifest's columns.
        partitioning: Its options name the columns.

    Returns:
        The faults.
    """
    wanted = {"--group-by": partitioning.group_by, "--stratify": partitioning.stratify}
    names = ", ".join(repr(str(name)) for name in frame.columns) or "none"
    return [
        f"no column {column!r} for {option} (found: {names}). Add it, or name another."
        for option, column in wanted.items()
        if column is not None and column not in frame.columns
    ]


def read_groups(
    frame: pd.DataFrame,
    names: pa.ChunkedArray,
    partitioning: Partitioning,
    inherited: Mapping[str, str] | None = None,
) -> pa.Table:
    """Read the groups of a manifest.

    Args:
        frame: The manifest's columns, as they were read.
        names: The names of its inputs, row for row.
        partitioning: Its options name the columns.
        inherited: The groups of the dataset that is the manifest. None for other manifests, and
            with a group column.

    Returns:
        A table with the schema `GROUPS`. An input without a value in the group column is a group of
        its own.
    """
    nothing: list[str | None] = [None] * len(frame)
    shared = nothing
    if partitioning.group_by is not None:
        texts = texts_of(frame[partitioning.group_by])
        shared = [None if text is None else key_of_group(text) for text in texts]
    elif inherited is not None:
        shared = inherited_keys(frame, inherited)
    pairs = zip(shared, names.to_pylist(), strict=True)
    keys = [key_of_input(name) if key is None else key for key, name in pairs]
    strata = nothing if partitioning.stratify is None else texts_of(frame[partitioning.stratify])
    partitions = texts_of(frame[PARTITION_COLUMN]) if PARTITION_COLUMN in frame.columns else nothing
    return pa.table([keys, strata, partitions], schema=GROUPS)


def faults_of_groups(
    groups: pa.Table, partitioning: Partitioning, places: Callable[[], Sequence[str]]
) -> list[str]:
    """Return a fault for each unknown partition, and for each group in two partitions.

    Args:
        groups: The manifest's groups, with the schema `GROUPS`.
        partitioning: Its shares name the known partitions.
        places: Returns the place of each row, such as "line 7".

    Returns:
        The faults, each with its line.
    """
    faults = []
    first: dict[str, int] = {}
    partitions = groups["given"].to_pylist()
    for row, name in enumerate(partitions):
        if name is None:
            continue
        if name not in partitioning.shares:
            known = ", ".join(partitioning.shares)
            faults.append(
                f"{places()[row]}: {PARTITION_COLUMN} {name!r} is not in --partition ({known}). "
                f"Correct it, or add {name}=0 to --partition."
            )
            continue
        key = groups["group"][row].as_py()
        earlier = first.setdefault(key, row)
        if partitions[earlier] != name:
            faults.append(
                f"{places()[row]}: has the {PARTITION_COLUMN} {name!r}, but {places()[earlier]} "
                f"of the same group {key.partition(':')[2]!r} has {partitions[earlier]!r}. "
                f"Give all rows of a group the same {PARTITION_COLUMN}."
            )
    return faults


def recorded_groups(dataset: str, version: int = 0) -> dict[str, str]:
    """Return the key of the group of each input that a dataset assigned to a partition.

    Args:
        dataset: The folder or URL of the dataset.
        version: The number of its version. 0: the last version.

    Returns:
        The keys by the names of the inputs. Empty if the dataset had no partitions.

    Raises:
        LedgerError: The record of the groups cannot be read.
        StoreError: The store does not respond.
    """
    ledger = Ledger(open_store(dataset))
    snapshot = ledger.snapshots.find(version) if version else ledger.snapshots.last_version()
    assignment = assignment_of(ledger, snapshot)
    if assignment is None:
        return {}
    rows = assignment.listed()
    return dict(zip(rows["input"].to_pylist(), rows["group"].to_pylist(), strict=True))


def inherited_groups(
    dataset: str, version: int, partitioning: Partitioning
) -> dict[str, str] | None:
    """Return the groups to inherit; None without a dataset, and with a group column.

    Args:
        dataset: The folder or URL of the dataset that is the manifest. Empty for other manifests.
        version: The number of its version. 0 without one.
        partitioning: The options.

    Returns:
        The result of `recorded_groups`, or None.
    """
    is_needed = dataset and partitioning.group_by is None
    return recorded_groups(dataset, version) if is_needed else None


def inherited_keys(frame: pd.DataFrame, recorded: Mapping[str, str]) -> list[str | None]:
    """Return the key of the group that each row inherits.

    Args:
        frame: Rows with the columns `made_from` and `original_input`, if they have them.
        recorded: The groups that the dataset of the inputs in `made_from` recorded.

    Returns:
        The recorded group of the input in `made_from`. Without a record, the group is the first
        input of the chain. None for a row that is not made from another input.
    """
    keys: list[str | None] = []
    chains = frame.reindex(columns=[MADE_FROM, ORIGINAL_INPUT])
    columns = chains[MADE_FROM].tolist(), chains[ORIGINAL_INPUT].tolist()
    for made_from, original in zip(*columns, strict=True):
        key = recorded.get(made_from)
        if key is None and not is_missing(made_from):
            key = key_of_input(str(made_from if is_missing(original) else original))
        keys.append(key)
    return keys
