"""`batchmill retry`: let failed inputs run again."""

import json as json_text

from batchmill.cli.console import console
from batchmill.cli.failures import FailureKinds, Inputs, choose_failures, count_inputs
from batchmill.cli.options import Dataset, Json
from batchmill.ledger.lease import check_free
from batchmill.ledger.open import open_ledger


def retry(
    dataset: Dataset, /, *inputs: Inputs, kind: FailureKinds = (), json: Json = False
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
    chosen = choose_failures(ledger, dataset, inputs, kind)["input"].to_pylist()
    if chosen:
        ledger.release(chosen)
    if json:
        print(json_text.dumps({"released": chosen}, ensure_ascii=False))
    elif chosen:
        console().print(f"{count_inputs(len(chosen))} let go, for the next batchmill run.")
    else:
        console().print("There are no such failed inputs.")
