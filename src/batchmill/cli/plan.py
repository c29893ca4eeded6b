"""`batchmill plan`: show what a run would do."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Annotated

from cyclopts import Group, Parameter

from batchmill.api.jobs.plan_job import PlanResult, plan_job
from batchmill.api.jobs.request import JobRequest
from batchmill.cli.console import console, print_json
from batchmill.cli.options import (
    JobOptions,
    Json,
    Manifest,
    Output,
    Params,
    ParamsFile,
    Step,
    check_given,
)
from batchmill.core.partitions.partitioning import count_strata, uneven_partitions
from batchmill.core.planning.decisions import MEANINGS, REASONS, UNREADABLE
from batchmill.core.planning.prepare import Prepared, code_changes
from batchmill.core.planning.run_spec import partitions_of
from batchmill.core.sizes import counted
from batchmill.core.user_step.params import parse_params
from batchmill.errors import OptionError

SHOWN_NAMES = 5
_THIS_PLAN = Group("This plan", sort_key=3)


def plan(
    manifest: Manifest = "",
    /,
    *,
    step: Step = "",
    output: Output = "",
    param: Params = (),
    params: ParamsFile = None,
    options: JobOptions = JobOptions(),
    cores: Annotated[int | None, Parameter(group=_THIS_PLAN)] = None,
    json: Json = False,
) -> None:
    """Show what `batchmill run` would do, with which batch size, and why.

    Starts no run and writes nothing. Example:

    ```
    batchmill plan words.csv --step batchmill.steps.words:split --output dataset --cores 64
    ```

    Args:
        cores: Cores to plan for, for example those of a cluster. Default: this machine's.
    """
    check_given(manifest=manifest, step=step, output=output)
    if cores is not None and cores < 1:
        raise OptionError(f"--cores {cores}: expected 1 or more.")
    request = JobRequest(
        manifest=manifest,
        step=step,
        output=output,
        params=parse_params(param, params, step),
        options=options,
    )
    print_plan(request, cores or 0, json=json)


def print_plan(request: JobRequest, cores: int = 0, *, json: bool) -> None:
    """Print what a run of a job would do."""
    planned = plan_job(request, cores)
    if json:
        print_json(_as_json(planned))
    else:
        console().print(*_lines(planned), sep="\n")


def _as_json(planned: PlanResult) -> dict[str, object]:
    prepared = planned.prepared
    return {
        **planned.counts,
        "too_young": len(prepared.manifest.too_young),
        "step_changes": list(prepared.step_changes),
        "library_changes": [asdict(change) for change in prepared.library_changes],
        **partitions_as_json(prepared),
        "shards": planned.shards,
        "batch_size": planned.batch_size,
        "num_workers": planned.num_workers,
        "reasons": list(planned.reasons),
        "cores": planned.cores,
        "forecast": planned.forecast.as_json() if planned.forecast else None,
    }


def partitions_as_json(prepared: Prepared) -> dict[str, object]:
    """Return the inputs per partition and stratum, and warnings. Empty without partitions."""
    how, groups, assigned = prepared.job.partitioning, prepared.manifest.groups, prepared.partition
    if how is None or groups is None or assigned is None:
        return {}
    strata = count_strata(assigned, groups, how)
    counts = partitions_of(prepared)
    return {
        "partitions": counts,
        **({"strata": strata} if strata else {}),
        "partition_changes": list(prepared.partition_changes),
        "partition_warnings": uneven_partitions(counts, how),
    }


def _check_lines(prepared: Prepared) -> list[str]:
    """Return a line about `--verify-change` if it applies to the changes of the step."""
    options = prepared.job.options.run
    if options.force or prepared.adoption():
        return []
    counts_libraries = options.libraries == "count" and prepared.library_changes
    if not counts_libraries and not (prepared.step_changes and code_changes(prepared).steps):
        return []
    if options.verify_change:
        count = counted(options.verify_change, "input")
        return [f"The run first compares a sample of {count}. If it is equal, outputs are kept."]
    return ["To keep the outputs if a sample of 300 inputs is equal: --verify-change 300"]


def partition_lines(prepared: Prepared) -> list[str]:
    """Return lines with the partitions' sizes, warnings, and why groups are re-assigned."""
    counts, how = partitions_of(prepared), prepared.job.partitioning
    listed = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    changes = "; ".join(prepared.partition_changes)
    return [
        *([f"Partitions: {listed}."] if counts else []),
        *(f"Warning: {text}." for text in (uneven_partitions(counts, how) if how else [])),
        *([f"Re-assigning all groups to partitions: {changes}."] if changes else []),
    ]


def _reason_lines(prepared: Prepared) -> Iterator[str]:
    """Yield a line for each reason that applies: its number of inputs, and the first names."""
    plan = prepared.plan
    names = {reason: plan.first(reason, SHOWN_NAMES) for reason in REASONS} | {
        UNREADABLE: plan.unreadable.slice(0, SHOWN_NAMES).to_pylist(),
        "withdrawn": plan.withdrawn.slice(0, SHOWN_NAMES).to_pylist(),
    }
    for reason, count in plan.counts.items():
        meaning = f" ({MEANINGS[reason]})" if reason in MEANINGS else ""
        if count:
            yield _line(f"{reason}{meaning}", count, names.get(reason, ()))
    too_young = prepared.manifest.too_young
    if len(too_young):
        first = too_young.slice(0, SHOWN_NAMES).to_pylist()
        yield _line("skipped, younger than --min-age", len(too_young), first)


def _line(what: str, count: int, names: Sequence[str]) -> str:
    more = " ..." if count > len(names) else ""
    return f"{count:>12,} {what}" + (f": {', '.join(names)}{more}" if names else "")


def _lines(planned: PlanResult) -> Iterator[str]:
    prepared = planned.prepared
    yield from _reason_lines(prepared)
    yield from prepared.change_lines()
    yield from partition_lines(prepared)
    if planned.pending:
        yield (
            f"{counted(planned.pending, 'input')} to execute, in "
            f"{counted(planned.shards, 'shard')} with batch_size {planned.batch_size} and "
            f"num_workers {planned.num_workers}."
        )
        yield from (f"  {reason}." for reason in planned.reasons)
    else:
        yield "Nothing to execute."
    yield from _check_lines(prepared)
    yield from planned.forecast.lines() if planned.forecast else ()
