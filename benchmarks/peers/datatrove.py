"""datatrove: a pipeline with a step for the work and a ParquetWriter, one task per worker.

python -m benchmarks.peers.datatrove KIND INPUTS OUT [--workers 2]
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor
from datatrove.io import get_datafolder
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.writers import ParquetWriter

from benchmarks.peers.command import Task, read_command, tell
from benchmarks.peers.work import make_work


class Files(PipelineStep):
    """Yields a document for each row of the files of its shard."""

    type = "READER"
    name = "Files"

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.folder = get_datafolder(str(task.inputs))
        self.task = task

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:  # noqa: ARG002
        """Yield the documents."""
        work = make_work(self.task.kind)
        for name in self.folder.get_shard(rank, world_size):
            with self.track_time("file"):
                rows = work(self.task.inputs / name, self.task.files)
            for number, row in enumerate(rows):
                yield Document(text="", id=f"{name}/{number}", metadata=row)


def row_of(_: ParquetWriter, document: Document) -> dict[str, Any]:
    """Return the row of a document."""
    metadata: dict[str, Any] = document.metadata
    return metadata


def main() -> None:
    """Run the pipeline."""
    task = read_command()
    begun = time.perf_counter()
    LocalPipelineExecutor(
        pipeline=[Files(task), ParquetWriter(str(task.table), adapter=row_of)],
        # All files take the same time, so more tasks would only add overhead.
        tasks=task.workers,
        workers=task.workers,
        logging_dir=str(Path(task.out, "logs")),
    ).run()
    tell(time.perf_counter() - begun)


if __name__ == "__main__":
    main()
