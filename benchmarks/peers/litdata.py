"""litdata: `map` over batches of paths. Each batch writes a part of the table.

python -m benchmarks.peers.litdata KIND INPUTS OUT [--workers 2]

litdata passes a temporary folder to each call, and moves its files to the output folder.
"""

import time
from functools import partial
from pathlib import Path

import litdata

from benchmarks.peers.command import FILES, TABLE, read_command, tell, write_table
from benchmarks.peers.work import make_work, parts_for


def process(paths: list[str] | str, output_dir: str, *, kind: str) -> None:
    """Do the work of a batch. litdata passes a batch of one as a plain path."""
    sources = [Path(path) for path in ([paths] if isinstance(paths, str) else paths)]
    work, out = make_work(kind), Path(output_dir)
    rows = [row for source in sources for row in work(source, out / FILES)]
    write_table(rows, out / TABLE / f"{sources[0].stem}.parquet")


def main() -> None:
    """Run `map`."""
    task = read_command()
    begun = time.perf_counter()
    litdata.map(
        fn=partial(process, kind=task.kind),
        inputs=[str(source) for source in task.sources],
        output_dir=str(task.out),
        num_workers=task.workers,
        batch_size=-(-len(task.sources) // parts_for(len(task.sources), task.workers)),
    )
    tell(time.perf_counter() - begun)


if __name__ == "__main__":
    main()
