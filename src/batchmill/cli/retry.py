"""`batchmill retry`: release failed inputs, so that the next run executes them."""

import json as json_text

from batchmill.cli.console import console
from batchmill.cli.failures import FailureKinds, Inputs
from batchmill.cli.options import Dataset, Json
from batchmill.jobs.failed_inputs import release_failures
from batchmill.sizes import counted


def retry(
    dataset: Dataset, /, *inputs: Inputs, kind: FailureKinds = (), json: Json = False
) -> None:
    """Release failed inputs: the next `batchmill run` over the dataset executes them.

    A failed input that is not released is skipped until its file, the step or the params change. An
    input that exceeded a limit is also executed after you raise this limit.

    ```
    batchmill retry dataset
    batchmill retry dataset --kind crashed --kind oom
    batchmill retry dataset recordings/a.wav
    ```
    """
    chosen = release_failures(dataset, inputs, kind)
    if json:
        print(json_text.dumps({"released": chosen}, ensure_ascii=False))
    elif chosen:
        count = counted(len(chosen), "input is", "inputs are")
        console().print(f"{count} released for the next batchmill run.")
    else:
        console().print("No failed input matches." if inputs or kind else "No input has failed.")
