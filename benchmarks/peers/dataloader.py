"""A bare torch DataLoader: a short script without any error handling.

python -m benchmarks.peers.dataloader KIND INPUTS OUT [--workers 2]
"""

import time
from typing import NamedTuple

from torch.utils.data import DataLoader, Dataset

from benchmarks.peers.command import Task, read_command, tell, write_table
from benchmarks.peers.work import Row, batch_size_for, make_work


class Done(NamedTuple):
    """The rows of a file, and when its work began and ended."""

    rows: list[Row]
    began: float
    ended: float


class Files(Dataset[Done]):
    """A torch Dataset whose items are the results of files."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.work = make_work(task.kind)

    def __len__(self) -> int:
        return len(self.task.sources)

    def __getitem__(self, index: int) -> Done:
        began = time.time()
        rows = self.work(self.task.sources[index], self.task.files)
        return Done(rows, began, time.time())


def main() -> None:
    """Run the loop and write the table."""
    task = read_command()
    loader: DataLoader[Done] = DataLoader(
        Files(task),
        batch_size=batch_size_for(len(task.sources), task.workers),
        num_workers=task.workers,
        collate_fn=list,
    )
    done = [one for batch in loader for one in batch]
    write_table([row for one in done for row in one.rows], task.table)
    # From the start of the first file to the end of the last one, as for batchmill.
    tell(max(one.ended for one in done) - min(one.began for one in done))


if __name__ == "__main__":
    main()
