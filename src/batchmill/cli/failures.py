"""`batchmill failures`: which inputs are not ok, and why."""

import json as json_text

from rich.console import Console

from batchmill.cli.options import Dataset, Json
from batchmill.job import open_dataset
from batchmill.outcome import one_line
from batchmill.publish import failure_records


def failures(dataset: Dataset, /, *, json: Json = False) -> None:
    """List the inputs of a dataset that are not ok: outcome, reason, traceback.

    ```
    batchmill failures dataset
    batchmill failures dataset --json
    ```
    """
    records = failure_records(open_dataset(dataset)).to_pylist()
    if json:
        print(json_text.dumps(records, ensure_ascii=False))
        return
    console = Console(highlight=False, soft_wrap=True)
    for record in records:
        why = one_line(record["error"], record["message"])
        console.print(f"{record['input']}: {record['outcome']}: {why}", markup=False)
        for text in (record["traceback"], record["log"]):
            for line in text.rstrip().splitlines():
                console.print(f"    {line}", markup=False)
    console.print(f"{len(records):,} inputs are not ok." if records else "Every input is ok.")
