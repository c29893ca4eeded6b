"""datatrove: `LocalPipelineExecutor` with two workers, and one task for each file.

A task that is done has a marker in `logging_dir`, and is skipped by the next run. One file in each
task loses least. An exception of a task ends the executor, so the step logs it and continues. There
is no limit of time or memory.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor
from datatrove.io import get_datafolder
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.writers import JsonlWriter
from datatrove.utils.logging import logger

from benchmarks.peers.faults.step import work


class Files(PipelineStep):
    """Yields a document for each file of its task."""

    type = "READER"
    name = "Files"

    def __init__(self, inputs: str) -> None:
        super().__init__()
        self.folder = get_datafolder(inputs)

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:  # noqa: ARG002
        """Yield the documents, and log the files that raise."""
        for name in self.folder.get_shard(rank, world_size):
            try:
                row = work(self.folder.resolve_paths(name))
            except Exception as error:  # noqa: BLE001
                logger.error(f"{name}: {error!r}")
                continue
            yield Document(text=json.dumps(row), id=name)


def row_of(_: JsonlWriter, document: Document) -> dict[str, Any]:
    """Return the row of a document."""
    row: dict[str, Any] = json.loads(document.text)
    return row


def main() -> None:
    """Run the pipeline."""
    inputs, out = sys.argv[1:]
    LocalPipelineExecutor(
        pipeline=[Files(inputs), JsonlWriter(f"{out}/rows", compression=None, adapter=row_of)],
        tasks=len(list(Path(inputs).iterdir())),
        workers=2,
        logging_dir=f"{out}/logs",
    ).run()


if __name__ == "__main__":
    main()
