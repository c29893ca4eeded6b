"""`batchmill plan`: what a run would do."""

import json as json_text
import os
from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter
from rich.table import Table

from batchmill.batching import Batching, Cores, Layout, lay_out, parallelism
from batchmill.cli.console import console
from batchmill.cli.options import NO_OPTIONS, JobOptions, Json, Manifest
from batchmill.errors import OptionError
from batchmill.job import Prepared, make_job, prepare
from batchmill.params import arguments_for
from batchmill.plan import REASONS

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

    Starts nothing and writes nothing. Example:

    ```
    batchmill plan words.csv --step batchmill.steps.words:split --output dataset --batch-size 2
    ```
    """
    parameters = options.parameters(manifest)
    prepared = prepare(make_job(**arguments_for(make_job, parameters)))
    if cores is not None and cores < 1:
        raise OptionError(f"--cores {cores}: expected 1 or more.")
    available = cores or _own_cores()
    batching = Batching(**arguments_for(Batching, parameters))
    sizes = prepared.plan.pending["size"].to_numpy()
    layout = lay_out(sizes, batching, Cores(total=available, node=available))
    if json:
        print(json_text.dumps(_as_json(prepared, layout, available)))
    else:
        _show(prepared, layout, available)


def _own_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
        "shards": layout.shards if pending else 0,
        "batch_size": layout.batch_size,
        "num_workers": layout.num_workers,
        "cores": cores,
        "parallelism": [
            {"batch_size": size, "cores": parallelism(pending, size)}
            for size in _batch_sizes(pending, layout.batch_size)
        ],
    }


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
    pending = len(prepared.plan.pending)
    if not pending:
        out.print("Nothing to execute.")
        return
    out.print(
        f"{pending:,} inputs to execute, in {layout.shards:,} shard(s) with batch_size "
        f"{layout.batch_size} and num_workers {layout.num_workers}."
    )
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
