"""A whole job in this process: what the flow does, without Prefect and Ray."""

from batchmill.batching import Batching, Cores, lay_out
from batchmill.job import make_job, prepare
from batchmill.plan_file import write_run_plan
from batchmill.publish import publish
from batchmill.shard import Shard, run_shard
from batchmill.summary import summarise


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
    **params,
):
    """Run a job and return its summary; `seen` gathers the outcomes as they come.

    `before` is called between the plan and the run.
    """
    job = make_job(manifest=str(manifest), step=step, output=str(output), params=params)
    prepared = prepare(job)
    prepared.ledger.create()
    run = 1 + max(prepared.ledger.runs(), default=0)
    layout = lay_out(
        prepared.plan.pending["size"].to_numpy(),
        Batching(batch_size=batch_size, num_workers=num_workers),
        Cores(total=cores, node=cores),
    )
    write_run_plan(prepared, run, layout, policy)
    if before:
        before()
    for number in range(layout.shards) if len(prepared.plan.pending) else ():
        start, stop = layout.bounds[number : number + 2]
        shard = Shard(
            dataset=job.output,
            run=run,
            number=number + 1,
            total=layout.shards,
            start=start,
            stop=stop,
        )
        run_shard(shard, seen.append if seen is not None else None)
    publish(prepared.ledger, prepared.manifest)
    return summarise(prepared.ledger, run)
