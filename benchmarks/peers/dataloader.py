"""A bare torch DataLoader: what one writes in five minutes, and nothing that can go wrong is met.

python -m benchmarks.peers.dataloader KIND INPUTS OUT [--workers 2]
"""

import time
from typing import NamedTuple

from torch.utils.data import DataLoader, Dataset

from benchmarks.peers.command import Task, read_command, tell, write_table
from benchmarks.peers.work import Row, batch_size_for, make_work


class Done(NamedTuple):
    """A file's rows, and when its work began and ended."""

    rows: list[Row]
    began: float
    ended: float


class Files(Dataset[Done]):
    """A Dataset whose items are what the work makes of a file."""

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
    # From the first file's start to the last one's end, as batchmill's records tell of its own.
    tell(max(one.ended for one in done) - min(one.began for one in done))


if __name__ == "__main__":
    main()
