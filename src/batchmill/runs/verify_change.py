"""Decides by a random sample whether the outputs of changed code are equal to the present ones."""

import secrets
from collections.abc import Callable
from dataclasses import replace
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.planning.changed_code import ChangeCheck
from batchmill.core.planning.forecast_sample import random_sample
from batchmill.core.planning.prepare import Prepared, code_changes, plan_with
from batchmill.runs.execute_again import NO_OUTCOME, RESULT_COLUMNS, compare_again

_SHOWN_INPUTS = 5


def verify_change(
    prepared: Prepared,
    *,
    on_sample: Callable[[int], None] = lambda _: None,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Prepared:
    """Execute a sample with the changed code of the step, and compare its results.

    The sample is taken from the inputs whose only reason to be executed is the changed code. It is
    executed into a temporary dataset on this machine, which is discarded.

    Args:
        prepared: The prepared job. Without `verify_change`, or if the check is done, nothing
            happens.
        on_sample: Called with the number of inputs before they are executed.
        is_cancelled: Returns True if the run must end early.

    Returns:
        The job with its `change_check`. If all results are equal, its plan keeps the outputs.

    Raises:
        BatchmillError: Any error of `prepare` and of the sample's shards.
    """
    if not prepared.job.options.run.verify_change or prepared.change_check:
        return prepared
    check = code_changes(prepared)
    # A plan as if the sample were equal contains the inputs that could be kept.
    candidate = plan_with(prepared, replace(check, sample=1))
    kept = candidate.plan.adopted
    if not len(kept):
        reason = check.reason or "there is no input with changed code as its only reason"
        return replace(prepared, change_check=ChangeCheck(reason=reason))
    if prepared.step.kind == "items":
        reason = "a step with one item per row of the manifest cannot run on a sample"
        return replace(prepared, change_check=ChangeCheck(reason=reason))
    check = replace(check, inputs=len(kept), seed=secrets.randbelow(2**31))
    check = _compare_sample(prepared, kept, check, on_sample, is_cancelled)
    return replace(candidate if check.is_equal else prepared, change_check=check)


def _compare_sample(
    prepared: Prepared,
    kept: pa.ChunkedArray,
    check: ChangeCheck,
    on_sample: Callable[[int], None],
    is_cancelled: Callable[[], bool],
) -> ChangeCheck:
    """Execute a sample of the inputs `kept`, and return the check with its result."""
    manifest = prepared.manifest
    rows = pc.indices_nonzero(pc.is_in(manifest.inputs["input"], value_set=kept))
    count = prepared.job.options.run.verify_change
    rows = rows.take(pa.array(random_sample(len(rows), count, check.seed)))
    on_sample(len(rows))
    # One failure decides, so the remaining inputs need not be executed.
    strict = prepared.job.with_failures(max_failures="0", fail_fast=True)
    before = prepared.state.of(manifest.inputs["input"].take(rows)).records(RESULT_COLUMNS)
    differing = compare_again(replace(prepared, job=strict), rows, before, is_cancelled)
    # With `fail_fast`, inputs without an outcome say nothing. They follow those with an outcome.
    different = sorted(differing, key=lambda name: (differing[name][0].text == NO_OUTCOME, name))
    return replace(
        check,
        sample=len(rows),
        different=len(different),
        differences=tuple(f"{n}: {differing[n][0].text}" for n in islice(different, _SHOWN_INPUTS)),
    )
