"""A `for` loop with `try`, in one process.

Each row is appended to the table as soon as it is done. A second run skips the files that have a
row, and repeats those that failed. A kill can cut the last line, so the loop begins with an empty
one, and lines that cannot be read do not count.
"""

import json
import sys
from contextlib import suppress
from pathlib import Path

from benchmarks.peers.faults.step import work


def main() -> None:
    """Run the loop."""
    inputs, out = Path(sys.argv[1]), Path(sys.argv[2])
    table, failed = out / "rows.jsonl", 0
    done = set()
    for line in table.read_text().splitlines() if table.exists() else []:
        with suppress(ValueError):
            done.add(json.loads(line)["name"])
    with table.open("a") as rows:
        rows.write("\n")
        for path in sorted(inputs.iterdir()):
            if path.name in done:
                continue
            try:
                row = work(path)
            except Exception as error:  # noqa: BLE001
                print(f"{path.name}: {error!r}", file=sys.stderr)
                failed += 1
                continue
            rows.write(json.dumps(row) + "\n")
            rows.flush()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
