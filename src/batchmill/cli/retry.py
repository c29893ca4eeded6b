"""`batchmill retry`: let failed inputs run again."""

import json as json_text
from typing import Annotated

from cyclopts import Parameter

from batchmill.cli.console import console
from batchmill.cli.options import Dataset, Json
from batchmill.errors import OptionError
from batchmill.job import open_ledger
from batchmill.lease import check_free
from batchmill.outcome import KINDS
from batchmill.publish import failure_records


def retry(
    dataset: Dataset,
    /,
    *inputs: Annotated[str, Parameter(help="Only these inputs, as `failures` names them.")],
    kind: Annotated[
        tuple[str, ...],
        Parameter(negative=(), show_default=False, help="Only this outcome; may be given again."),
    ] = (),
    json: Json = False,
) -> None:
    """Let inputs that failed run again: the next `batchmill run` over the dataset executes them.

    Without it, a run passes them over until the file, the step or its params change.

    ```
    batchmill retry dataset
    batchmill retry dataset --kind crashed --kind oom
    batchmill retry dataset recordings/a.wav
    ```
    """
    ledger = open_ledger(dataset)
    check_free(ledger)
    unknown = set(kind) - set(KINDS)
    if unknown:
        known = ", ".join(name for name in KINDS if name != "ok")
        raise OptionError(f"--kind {sorted(unknown)[0]}: expected one of {known}.")
    failed = failure_records(ledger).select(["input", "outcome"]).to_pylist()
    missing = set(inputs) - {record["input"] for record in failed}
    if missing:
        raise OptionError(
            f"{sorted(missing)[0]}: is none of the failed inputs of {dataset}. "
            f"They are listed by: batchmill failures {dataset}"
        )
    chosen = [
        record["input"]
        for record in failed
        if (not inputs or record["input"] in inputs) and (not kind or record["outcome"] in kind)
    ]
    if chosen:
        ledger.release(chosen)
    if json:
        print(json_text.dumps({"released": chosen}, ensure_ascii=False))
    else:
        text = f"{len(chosen):,} failed inputs will run again with the next batchmill run."
        console().print(text if chosen else "There are no such failed inputs.")
