"""joblib: `Parallel` with two processes, a timeout for each task, and `Memory`.

`Memory` keeps the result of each file on disk until the function's code changes. `timeout` is 10 s
for a task, so a batch has one. `return_as="generator_unordered"` delivers the results that came
before an error of the whole call. joblib has no limit of memory.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from joblib import Memory, Parallel, delayed

from benchmarks.peers.faults.step import work

OUT = Path(sys.argv[2])
remembered = Memory(OUT / "cache", verbose=0).cache(work)


def attempt(path: str) -> dict[str, Any]:
    """Return the row of a file, or its error, because an exception ends the whole call."""
    try:
        return {**remembered(path), "error": ""}
    except Exception as error:  # noqa: BLE001
        return {"name": os.path.basename(path), "error": repr(error)}


def main() -> None:
    """Run the calls, and write the table."""
    parallel = Parallel(n_jobs=2, timeout=10, batch_size=1, return_as="generator_unordered")
    paths = sorted(str(path) for path in Path(sys.argv[1]).iterdir())
    failed = 0
    with (OUT / "rows.jsonl").open("w") as rows:
        for row in parallel(delayed(attempt)(path) for path in paths):
            rows.write(json.dumps(row) + "\n")
            if row["error"]:
                print(f"{row['name']}: {row['error']}", file=sys.stderr)
                failed += 1
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
