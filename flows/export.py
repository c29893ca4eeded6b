"""The flow `export`: write a dataset as the shards of a training format, for example each night."""

from pathlib import Path
from typing import Any

from batchmill.flows.deployment_checks import refuse_relative
from batchmill.flows.parameter_schema import titled
from prefect import flow
from prefect.runtime import flow_run
from prefect.states import Completed

from batchmill.core.sizes import counted, readable_size
from batchmill.datasets.exporting.formats import FormatName
from batchmill.datasets.exporting.run_export import SHARD_SIZE, export_dataset


def _run_name() -> str:
    parameters = flow_run.get_parameters()
    return f"{Path(str(parameters['dataset'])).name}: export to {parameters['to']}"


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


@flow(flow_run_name=_run_name)
@titled(dataset="Dataset", out="Folder of the shards", to="Format", where="Only rows that meet")
def export(
    dataset: str,
    out: str,
    to: FormatName = "webdataset",
    partition: str = "",
    where: str = "",
    shard_size: str = SHARD_SIZE,
    version: str = "",
    class_label: str = "",
) -> Any:
    """Write a dataset as the shards of a training format. Only changed shards are written again.

    Args:
        dataset: The folder or URL of the dataset.
        out: The folder or URL of the shards. It must be new, empty, or an earlier export.
        to: The format of the shards.
        partition: The partitions to export, separated by commas. Default: all rows.
        where: A condition on columns, for example label != 'noise'. Default: all rows.
        shard_size: The largest size of a shard, about.
        version: The number or name of a version. Default: the last one.
        class_label: The columns with few texts that become class labels, separated by commas.
    """
    refuse_relative(dataset=dataset, out=out)
    made = export_dataset(
        dataset,
        out,
        to=to,
        partitions=_names(partition) or None,
        where=where,
        shard_size=shard_size,
        version=version.strip() or None,
        class_labels=_names(class_label),
    )
    shards = f"{counted(len(made.shards), 'shard')} ({made.written:,} written)"
    return Completed(
        message=f"{counted(made.samples, 'sample')} in {shards}, {readable_size(made.bytes)}: {out}"
    )
