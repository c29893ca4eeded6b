"""`batchmill plan`: what a run would do."""

import json as json_text
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from cyclopts import Parameter
from rich.table import Table

from batchmill.cli.console import console
from batchmill.cli.options import NO_OPTIONS, JobOptions, Json, Manifest
from batchmill.cli.workers import batching_of, measured
from batchmill.errors import OptionError
from batchmill.partitioning import count_strata
from batchmill.planning.batching import Cores, Layout, own_cores, parallelism, plan_shards
from batchmill.planning.job import Prepared, make_job, prepare
from batchmill.planning.plan import REASONS
from batchmill.planning.run_spec import partitions_of
from batchmill.step.params import arguments_for

SHOWN_NAMES = 5


def plan(
    manifest: Manifest | None = None,
    /,
    *,
    options: JobOptions = NO_OPTIONS,
    cores: Annotated[
        int | None, Parameter(help="Cores to plan for, as of a cluster. Default: this machine's.")
    ] = None,
    json: Json = False,
) -> None:
    """Tell what `batchmill run` would do, and how many cores the batch size lets it use.

    Starts nothing and writes nothing; with `--num-workers auto`, it executes a few inputs, of which
    nothing is kept. Example:

    ```
    batchmill plan words.csv --step batchmill.steps.words:split --output dataset --batch-size 2
    ```
    """
    parameters = options.job_parameters(manifest)
    batching_of(parameters)
    prepared = prepare(make_job(**arguments_for(make_job, parameters)))
    if cores is not None and cores < 1:
        raise OptionError(f"--cores {cores}: expected 1 or more.")
    available = cores or own_cores()
    told = None if json else console(stderr=True)
    parameters, why = measured(parameters, prepared, available, told)
    batching = batching_of(parameters)
    batching = replace(batching, why_workers=why) if why else batching
    sizes = prepared.plan.pending["size"].to_numpy()
    own = Cores(total=available, node=available)
    layout = plan_shards(sizes, batching, own, whole_batches=prepared.step.is_batched)
    if json:
        print(json_text.dumps(_as_json(prepared, layout, available)))
    else:
        _show(prepared, layout, available)


def _batch_sizes(pending: int, chosen: int) -> list[int]:
    """Return the powers of two up to the first that makes one batch, and the one that is chosen."""
    powers = [2**power for power in range((max(pending, 1) - 1).bit_length() + 1)]
    return sorted({*powers, chosen})


def _as_json(prepared: Prepared, layout: Layout, cores: int) -> dict[str, object]:
    pending = len(prepared.plan.pending)
    return {
        **prepared.plan.counts,
        "unsettled": len(prepared.manifest.unsettled),
        "step_changes": list(prepared.step_changes),
        **partitions_as_json(prepared),
        "shards": layout.shards if pending else 0,
        "batch_size": layout.batch_size,
        "num_workers": layout.num_workers,
        "reasons": list(layout.reasons),
        "cores": cores,
        "parallelism": [
            {"batch_size": size, "cores": parallelism(pending, size)}
            for size in _batch_sizes(pending, layout.batch_size)
        ],
    }


def partitions_as_json(prepared: Prepared) -> dict[str, object]:
    """Return the number of inputs in each partition, also of each stratum; empty without any."""
    how, manifest = prepared.job.partitioning, prepared.manifest
    if how is None or manifest.groups is None or manifest.partition is None:
        return {}
    strata = count_strata(manifest.partition, manifest.groups, how)
    return {
        "partitions": partitions_of(prepared),
        **({"strata": strata} if strata else {}),
        "partition_changes": list(prepared.partition_changes),
    }


def partition_lines(prepared: Prepared) -> list[str]:
    """Say how many inputs are in which partition, and why groups are dealt anew, if they are."""
    counts = partitions_of(prepared)
    listed = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    changes = "; ".join(prepared.partition_changes)
    return [
        *([f"Partitions: {listed}."] if counts else []),
        *([f"All groups are dealt to partitions anew: {changes}."] if changes else []),
    ]


def _line(what: str, count: int, names: Sequence[str]) -> str:
    more = " ..." if count > len(names) else ""
    return f"{count:>12,} {what}" + (f": {', '.join(names)}{more}" if names else "")


def _show(prepared: Prepared, layout: Layout, cores: int) -> None:
    out = console()
    counts = prepared.plan.counts
    for reason in REASONS:
        out.print(_line(reason, counts[reason], prepared.plan.first(reason, SHOWN_NAMES)))
    for reason in ("quarantined", "unchanged"):
        out.print(f"{counts[reason]:>12,} {reason}")
    gone = prepared.plan.withdrawn["input"].slice(0, SHOWN_NAMES).to_pylist()
    out.print(_line("withdrawn", counts["withdrawn"], gone))
    if gone:
        out.print("Files and rows of withdrawn inputs stay; batchmill run --prune removes them.")
    unsettled = prepared.manifest.unsettled
    if len(unsettled):
        names = unsettled.slice(0, SHOWN_NAMES).to_pylist()
        out.print(_line("left out, younger than --settle", len(unsettled), names))
    for line in prepared.step_changes:
        out.print(f"All is executed again, for {line}.")
    for line in partition_lines(prepared):
        out.print(line)
    pending = len(prepared.plan.pending)
    if not pending:
        out.print("Nothing to execute.")
        return
    out.print(
        f"{pending:,} inputs to execute, in {layout.shards:,} shard(s) with batch_size "
        f"{layout.batch_size} and num_workers {layout.num_workers}."
    )
    for reason in layout.reasons:
        out.print(f"  {reason}.")
    table = Table("batch_size", "cores it can use", f"idle of {cores} here")
    for size in _batch_sizes(pending, layout.batch_size):
        can_use = parallelism(pending, size)
        mark = " <- this run" if size == layout.batch_size else ""
        table.add_row(str(size), f"{can_use:,}", f"{max(0, cores - can_use)}{mark}")
    out.print(table, soft_wrap=False)
    idle = cores - parallelism(pending, layout.batch_size)
    if idle > 0 and layout.batch_size > 1:
        out.print(
            f"batch_size {layout.batch_size} leaves {idle} of {cores} cores idle: a batch is the "
            "work of one core. A smaller one uses more."
        )
