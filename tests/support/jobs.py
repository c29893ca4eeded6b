"""Run a whole job in this process as the flow does, without Prefect and Ray."""

from batchmill.options.failure_policy import FailurePolicy
from batchmill.options.job_settings import JobSettings
from batchmill.planning.batching import Batching, Cores
from batchmill.planning.job import make_job
from batchmill.planning.prepare import prepare
from batchmill.publishing.publish import publish_changes
from batchmill.publishing.tables import publish
from batchmill.runs.run import open_run
from batchmill.shards.run_shard import run_shard


def job_of(manifest, step, output, *, params=None, **options):
    """Return a job; `options` are flat options, as on the command line."""
    groups = JobSettings.from_flat(options)
    return make_job(
        manifest=str(manifest),
        step=step,
        output=str(output),
        params=params,
        inputs=groups.inputs,
        partitions=groups.partitions,
        confinement=groups.confinement,
        force=groups.run.force,
    )


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
    options=None,
    recorded=False,
    **params,
):
    """Run a job and return its summary; outcomes are appended to `seen` when they arrive.

    `before` is called between the plan and the run. With `recorded`, the run also writes the record
    of its tables, as the flow does. `options` are further options of the job.
    """
    job = job_of(manifest, step, output, params=params, force=force, **(options or {}))
    with open_run(prepare(job)) as run:
        batching = Batching(batch_size=batch_size, num_workers=num_workers)
        cores = Cores(total=cores, node=cores)
        _, shards = run.divide(batching, cores, policy or FailurePolicy())
        if before:
            before()
        for shard in shards:
            run_shard(shard, seen.append if seen is not None else None)
        run.finalize(prune=prune)
        (publish_changes if recorded else publish)(run.ledger, run.prepared.manifest)
        return run.end()
