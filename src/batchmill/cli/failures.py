"""`batchmill failures`: which inputs are not ok, and why."""

import json as json_text
from typing import Annotated

from cyclopts import Parameter

from batchmill.cli.console import console
from batchmill.cli.options import Dataset, Json
from batchmill.job import open_ledger
from batchmill.outcome import one_line
from batchmill.publish import failure_records


def failures(
    dataset: Dataset,
    /,
    *,
    json: Json = False,
    csv: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Print CSV, for tables.")
    ] = False,
) -> None:
    """List the inputs of a dataset that are not ok: outcome, reason, traceback.

    ```
    batchmill failures dataset
    batchmill failures dataset --json
    ```
    """
    table = failure_records(open_ledger(dataset))
    if csv:
        print(table.to_pandas().to_csv(index=False), end="")
        return
    records = table.to_pylist()
    if json:
        print(json_text.dumps(records, ensure_ascii=False))
        return
    out = console()
    for record in records:
        why = one_line(record["error"], record["message"])
        out.print(f"{record['input']}: {record['outcome']}: {why}")
        for text in (record["traceback"], record["log"]):
            for line in text.rstrip().splitlines():
                out.print(f"    {line}")
    out.print(f"{len(records):,} inputs are not ok." if records else "No input has failed.")
