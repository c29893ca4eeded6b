"""Inherit the groups of the dataset that a manifest is: clips of one recording stay together."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from batchmill.cells import is_missing
from batchmill.layout import MADE_FROM, ORIGINAL_INPUT
from batchmill.ledger.ledger import Ledger
from batchmill.partitions.partitioning import Partitioning, key_of_input
from batchmill.partitions.record import last_assignment
from batchmill.storage import open_store


def recorded_groups(dataset: str) -> dict[str, str]:
    """Return the key of the group of each input that a dataset assigned to a partition.

    Args:
        dataset: The folder or URL of the dataset.

    Returns:
        The keys by the names of the inputs. Empty if the dataset had no partitions.

    Raises:
        LedgerError: The record of the groups cannot be read.
        StoreError: The store does not respond.
    """
    assignment = last_assignment(Ledger(open_store(dataset)))
    if assignment is None:
        return {}
    rows = assignment.rows.filter(assignment.rows["input"].is_valid())
    return dict(zip(rows["input"].to_pylist(), rows["group"].to_pylist(), strict=True))


def inherited_groups(dataset: str, partitioning: Partitioning) -> dict[str, str] | None:
    """Return the groups to inherit; None without a dataset, and with a group column.

    Args:
        dataset: The folder or URL of the dataset that is the manifest. Empty for other manifests.
        partitioning: The options.

    Returns:
        The result of `recorded_groups`, or None.
    """
    return recorded_groups(dataset) if dataset and partitioning.group_by is None else None


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
    columns = (_column(frame, MADE_FROM), _column(frame, ORIGINAL_INPUT))
    for made_from, original in zip(*columns, strict=True):
        key = recorded.get(made_from)
        if key is None and not is_missing(made_from):
            key = key_of_input(str(made_from if is_missing(original) else original))
        keys.append(key)
    return keys


def _column(frame: pd.DataFrame, name: str) -> list[Any]:
    return frame[name].tolist() if name in frame.columns else [None] * len(frame)
