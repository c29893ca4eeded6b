"""Ray Data: `read_binary_files`, `map` and `write_parquet`, with Ray's options for errors.

`max_errored_blocks=-1` drops the blocks that failed, so each file is a block of its own. A task
whose worker died is retried without end by default; here it has `max_retries=2`. A checkpoint, kept
after success, skips the files that have a row. A run in which nothing ends for 30 s fails because
of `execution_no_progress_timeout_s`, because there is no limit of time for a task. Ray's memory
monitor acts when the machine has little memory left, so it does not act here. `concurrency=2` gives
the function two workers. Ray has more cores, because the filter of the checkpoint needs some, too.
"""

import sys
from pathlib import Path
from typing import Any

import ray
from ray.data.checkpoint.interfaces import CheckpointConfig

from benchmarks.peers.faults.step import work


def process(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a file. An error names it."""
    try:
        return {"path": row["path"], **work(row["path"])}
    except Exception as error:
        raise RuntimeError(f"{row['path']} failed") from error


def main() -> None:
    """Start Ray, and run."""
    inputs, out = sys.argv[1:]
    ray.init(address="local", num_cpus=4, include_dashboard=False)
    context = ray.data.DataContext.get_current()
    context.max_errored_blocks = -1
    context.execution_no_progress_timeout_s = 30
    context.checkpoint_config = CheckpointConfig(
        id_column="path", checkpoint_path=f"{out}/checkpoint", delete_checkpoint_on_success=False
    )
    files = ray.data.read_binary_files(
        inputs,
        include_paths=True,
        override_num_blocks=len(list(Path(inputs).iterdir())),
        ray_remote_args={"max_retries": 2},
    )
    files.map(process, concurrency=2, max_retries=2).write_parquet(f"{out}/rows")


if __name__ == "__main__":
    main()
