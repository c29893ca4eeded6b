"""Prefect alone: `.map` of a task over the files on RayTaskRunner, one task run per file.

python -m benchmarks.peers.prefect_map KIND INPUTS OUT [--workers 2]

It starts one temporary server on the database in PREFECT_HOME, as batchmill does. Prefect itself
would start a server in each process.
"""

import os
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.command import Task, read_command, tell, write_table
from benchmarks.scale import prefect_server


def run(task: Task) -> float:
    """Run the flow, and return its seconds."""
    # Imported here, because Prefect reads the environment at import time.
    from prefect import flow
    from prefect import task as prefect_task
    from prefect_ray import RayTaskRunner

    from benchmarks.peers.work import make_work

    work, files = make_work(task.kind), task.files

    @prefect_task
    def process(path: str) -> list[dict[str, Any]]:
        return work(Path(path), files)

    runner: Any = RayTaskRunner(
        init_kwargs={
            "address": "local",
            "num_cpus": task.workers,
            "include_dashboard": False,
            "log_to_driver": False,
        }
    )

    @flow(task_runner=runner)
    def process_all() -> None:
        futures = process.map([str(source) for source in task.sources])
        write_table([row for future in futures for row in future.result()], task.table)

    begun = time.perf_counter()
    process_all()
    return time.perf_counter() - begun


def main() -> None:
    """Start a server, run the flow, stop the server."""
    task = read_command()
    # By default, the server writes task runs one by one, and cannot keep up.
    os.environ["PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE"] = "100"
    os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] = "false"
    with prefect_server(Path(os.environ["PREFECT_HOME"])) as (_, environment):
        os.environ.update(environment)
        tell(run(task))


if __name__ == "__main__":
    main()
