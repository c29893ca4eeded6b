"""`batchmill retry`: let the next run execute failed inputs again."""

from batchmill.cli.console import console, print_json
from batchmill.cli.failures import FailureGroups, FailureKinds, Inputs
from batchmill.cli.options import Dataset, Json
from batchmill.jobs.failed_inputs import release_failures
from batchmill.sizes import counted


def retry(
    dataset: Dataset,
    /,
    *inputs: Inputs,
    kind: FailureKinds = (),
    group: FailureGroups = (),
    json: Json = False,
) -> None:
    """Let the next run over the dataset execute failed inputs again.

    Without this command, a run skips a failed input until its file, the step or the params change,
    or until you raise the limit that it exceeded.

    ```
    batchmill retry dataset
    batchmill retry dataset --kind crashed --kind oom
    batchmill retry dataset --group 1
    batchmill retry dataset recordings/a.wav
    ```
    """
    chosen = release_failures(str(dataset), inputs, kind, group)
    if json:
        print_json({"released": chosen})
    elif chosen:
        console().print(f"The next run executes {counted(len(chosen), 'input')} again.")
    else:
        console().print("There is no failed input to execute again.")
