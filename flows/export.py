"""The flow `export`: write a dataset as the shards of a training format, for example each night."""

from pathlib import Path
from typing import Any

from batchmill.flows.deployment_checks import refuse_relative
from batchmill.flows.parameter_schema import titled
from prefect import flow
from prefect.runtime import flow_run
from prefect.states import Completed

from batchmill.exporting.formats import FormatName
from batchmill.exporting.run_export import SHARD_SIZE, export_dataset
from batchmill.security.allowlist import check_dataset
from batchmill.sizes import counted, readable_size
from batchmill.urls import absolute


def _run_name() -> str:
    parameters = flow_run.get_parameters()
    return f"{Path(str(parameters['dataset'])).name}: export to {parameters['to']}"


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
    """
    refuse_relative(dataset=dataset, out=out)
    check_dataset(absolute(out))
    made = export_dataset(
        dataset,
        out,
        to=to,
        partitions=tuple(name.strip() for name in partition.split(",") if name.strip()) or None,
        where=where,
        shard_size=shard_size,
        version=version.strip() or None,
    )
    shards = f"{counted(len(made.shards), 'shard')} ({made.written:,} written)"
    return Completed(
        message=f"{counted(made.samples, 'sample')} in {shards}, {readable_size(made.bytes)}: {out}"
    )
