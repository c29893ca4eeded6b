"""`concurrent.futures.ProcessPoolExecutor` with two workers.

The table is the same as that of the loop: each row is appended when its future ends, and a second
run skips the files that have a row. The exception of a future is reported with its file. There is
no limit of time or memory for a task: the timeout of `as_completed` is that of the caller, and the
executor waits for its workers.
"""

import json
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path

from benchmarks.peers.faults.step import work


def main() -> None:
    """Run the pool."""
    inputs, out = Path(sys.argv[1]), Path(sys.argv[2])
    table, failed = out / "rows.jsonl", 0
    done = set()
    for line in table.read_text().splitlines() if table.exists() else []:
        with suppress(ValueError):
            done.add(json.loads(line)["name"])
    paths = [path for path in sorted(inputs.iterdir()) if path.name not in done]
    with table.open("a") as rows, ProcessPoolExecutor(2) as pool:
        rows.write("\n")
        rows.flush()
        futures = {pool.submit(work, path): path for path in paths}
        for future in as_completed(futures):
            try:
                row = future.result()
            except Exception as error:  # noqa: BLE001
                print(f"{futures[future].name}: {error!r}", file=sys.stderr)
                failed += 1
                continue
            rows.write(json.dumps(row) + "\n")
            rows.flush()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
