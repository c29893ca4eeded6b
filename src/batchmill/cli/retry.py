"""`batchmill retry`: releases failed inputs, so that the next run executes them."""

import json as json_text

from batchmill.cli.console import console
from batchmill.cli.failures import FailureKinds, Inputs, count_inputs
from batchmill.cli.options import Dataset, Json
from batchmill.publishing.failed_inputs import release_failures


def retry(
    dataset: Dataset, /, *inputs: Inputs, kind: FailureKinds = (), json: Json = False
) -> None:
    """Release failed inputs: the next `batchmill run` over the dataset executes them.

    Otherwise a run skips them until the file, the step or its params change.

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
        count = count_inputs(len(chosen))
        console().print(f"{count} released. The next batchmill run executes them.")
    else:
        console().print("There are no such failed inputs.")
