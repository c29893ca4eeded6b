"""DataChain: `read_storage`, `map` in two processes, `save`, and the table as Parquet.

`delta=True` processes new and changed files alone, and `delta_retry` those whose row has an error,
which the function returns in a column. If a run stops, a checkpoint keeps the rows that are done,
and `batch_size=10` stores them ten at a time. There is no limit of time or memory. With `delta`, a
changed function alone executes nothing. Without it, a new file executes all files again, and a
change is noticed in the function that `map` gets, not in the functions that it calls.
"""

import sys
from pathlib import Path

import datachain as dc
from pydantic import BaseModel

from benchmarks.peers.faults.step import tried

INPUTS, OUT = (Path(folder).resolve() for folder in sys.argv[1:])


class Row(BaseModel):
    """The columns of a row."""

    name: str
    word: str
    digest: str
    error: str


def attempt(file: dc.File) -> Row:
    """Return the row of a file."""
    return Row(**tried(INPUTS / file.path))


def main() -> None:
    """Run the chain."""
    files = dc.read_storage(
        INPUTS.as_uri(), update=True, delta=True, delta_on="file.path", delta_retry="row.error"
    )
    rows = files.settings(parallel=2, batch_size=10).map(row=attempt).save("rows")
    rows.to_parquet(OUT / "rows.parquet")
    failed = [row for row in rows.to_values("row") if row.error]
    for row in failed:
        print(f"{row.name}: {row.error}", file=sys.stderr)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
