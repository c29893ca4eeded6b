"""Ray Data: `flat_map` over rows of paths, then `write_parquet`.

python -m benchmarks.peers.ray_data KIND INPUTS OUT [--workers 2]
"""

import time
from pathlib import Path
from typing import Any

import ray

from benchmarks.peers.command import read_command, tell
from benchmarks.peers.work import make_work, parts_for


def main() -> None:
    """Start Ray with one core per worker, and run."""
    task = read_command()
    work, files = make_work(task.kind), task.files
    ray.init(address="local", num_cpus=task.workers, include_dashboard=False, log_to_driver=False)

    def process(row: dict[str, Any]) -> list[dict[str, Any]]:
        return work(Path(row["path"]), files)

    begun = time.perf_counter()
    # By default, Ray makes 200 blocks of tiny files, and each block costs 25 ms.
    rows = ray.data.from_items(
        [{"path": str(source)} for source in task.sources],
        override_num_blocks=parts_for(len(task.sources), task.workers),
    )
    rows.flat_map(process).write_parquet(str(task.table))
    tell(time.perf_counter() - begun)


if __name__ == "__main__":
    main()
