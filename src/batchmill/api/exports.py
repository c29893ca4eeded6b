"""Export a dataset, and compare an export with its index."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from batchmill.api.keywords import python_call
from batchmill.datasets.exporting.verify_export import ExportDifference, find_differences

if TYPE_CHECKING:
    from batchmill.datasets.exporting.run_export import ExportResult


@python_call
def export(
    dataset: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    to: str,
    partition: str | Sequence[str] | None = None,
    where: str = "",
    shard_size: str | int = "256M",
    shuffle: int | None = None,
    version: int | str | None = None,
    stale: bool = True,
    class_label: str | Sequence[str] = (),
    num_workers: int | None = None,
) -> "ExportResult":
    """Write a dataset as the shards of a training format.

    The same call again writes only the shards whose rows changed. If it was killed, it resumes.

    Args:
        dataset: The dataset's folder or URL.
        out: The folder or URL of the shards: new, empty, or an earlier export.
        to: The format: "webdataset" or "huggingface".
        partition: The partition or partitions to export. None: all rows.
        where: A condition on columns, as `pandas.DataFrame.query` takes it.
        shard_size: The largest size of a shard, about: bytes, or a text such as "256M".
        shuffle: The seed of a random order. None: the order of the table.
        version: The number or name of a version. None: the last one.
        stale: False to leave out earlier results of inputs that are not ok.
        class_label: The column or columns with few texts that become class labels of Hugging Face.
        num_workers: The number of threads. None: one per core.

    Returns:
        The shards, and the number of samples.

    Raises:
        OptionError: An option cannot be used, no sample is left, or `out` contains other files.
        StoreError: A file is missing or damaged, or a shard cannot be written.
    """
    from batchmill.datasets.exporting.run_export import export_dataset  # Imports torch.

    chosen = [partition] if isinstance(partition, str) else partition
    return export_dataset(
        os.fspath(dataset),
        os.fspath(out),
        to=to,
        partitions=None if chosen is None else tuple(chosen),
        where=where,
        shard_size=shard_size,
        shuffle=shuffle,
        version=version,
        stale=stale,
        class_labels=[class_label] if isinstance(class_label, str) else class_label,
        num_workers=num_workers,
    )


@python_call
def verify_export(out: str | os.PathLike[str]) -> pd.DataFrame:
    """Compare an export with its index. Reads every shard.

    Args:
        out: The folder or URL of the shards.

    Returns:
        One row per difference: kind, path, sample, input. The table is empty if every byte is as it
        was written.

    Raises:
        OptionError: There is no complete export.
        StoreError: The shards cannot be read.
    """
    differences = list(find_differences(os.fspath(out)))
    return pd.DataFrame(differences, columns=ExportDifference._fields)
