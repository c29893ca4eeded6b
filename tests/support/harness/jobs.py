"""Run a whole job in this process, without Prefect and Ray."""

from dataclasses import replace

from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.options.job_options import JobSettings
from batchmill.core.planning.job import make_job
from batchmill.core.planning.prepare import prepare
from batchmill.core.planning.recorded_job import jobs_to_update
from batchmill.runs.execute import InThisProcess, RunObserver, execute
from batchmill.runs.verify_change import verify_change


def job_of(manifest, step, output, *, params=None, **options):
    """Return a job; `options` are flat options, as on the command line."""
    return make_job(
        manifest=str(manifest),
        step=step,
        output=str(output),
        params=params,
        options=JobSettings.from_flat(options),
    )


class Before(RunObserver):
    """Calls a function between the plan and the shards."""

    def __init__(self, function):
        self._function = function

    def planned(self, run):
        if self._function:
            self._function()


def run_job(
    manifest,
    step,
    output,
    *,
    batch_size=None,
    num_workers=2,
    cores=2,
    seen=None,
    policy=None,
    before=None,
    force=False,
    prune=False,
    keep_versions=1,
    prune_failed=False,
    options=None,
    concurrency=None,
    rate="",
    **params,
):
    """Run a job and return its summary; outcomes are appended to `seen` when they arrive.

    `before` is called between the plan and the shards. `options` are further options of the job.
    """
    given = {
        "batch_size": batch_size,
        "num_workers": num_workers,
        "concurrency": concurrency,
        "rate": rate,
        "force": force,
        "prune": prune,
        "keep_versions": keep_versions,
        "prune_failed": prune_failed,
        **(options or {}),
    }
    job = job_of(manifest, step, output, params=params, **given)
    job = replace(job, options=replace(job.options, failures=policy or FailurePolicy()))
    return execute_job(job, cores=cores, seen=seen, before=before)


def update(dataset, *, deep=False, **options):
    """Run the recorded job of a dataset again, and return its summary."""
    for request in jobs_to_update(str(dataset), deep=deep):
        job = make_job(
            manifest=request.manifest,
            step=request.step,
            output=request.output,
            params=request.params,
            options=request.options,
        )
        summary = execute_job(job, **options)
    return summary


def execute_job(job, *, cores=2, seen=None, before=None):
    """Run a job in this process, and return its summary."""
    ended = execute(
        verify_change(prepare(job)),
        InThisProcess(cores=cores, on_outcome=seen.append if seen is not None else None),
        Before(before),
    )
    return ended.summary
