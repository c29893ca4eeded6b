"""`batchmill review`: show what a change of the step does to a dataset."""

import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from batchmill.cli.console import console, print_json
from batchmill.cli.options import Dataset, Json, Params, ParamsFile, Step
from batchmill.core.planning.recorded_job import recorded_job
from batchmill.core.sizes import counted
from batchmill.core.urls import absolute
from batchmill.core.user_step.params import parse_params
from batchmill.errors import OptionError

# The exit code if a result or a failure of the sample has changed.
DIFFERENT = 3


def review(
    dataset: Dataset,
    /,
    *,
    param: Params = (),
    params: ParamsFile = None,
    step: Step = "",
    sample: Annotated[int, Parameter(alias="-n")] = 300,
    seed: int | None = None,
    python: str = "",
    html: Annotated[Path | None, Parameter(alias="-o")] = None,
    markdown: Path | None = None,
    json: Json = False,
) -> int:
    """Execute a random sample of a dataset with a changed step, and show what the change does.

    Compares the recorded results with those of other params, of the present code and of the present
    libraries. The new results are discarded. The exit code is 0 if all are equal, else 3. Examples:

    ```
    batchmill review clips --param top_db=30 -o review.html
    batchmill review clips --python ../other/bin/python --markdown review.md
    ```

    Args:
        sample: Number of inputs to execute.
        seed: Choose the same sample again.
        python: Execute it with another Python, whose environment has batchmill and other libraries.
        html: Also write the review to this page, with the most changed results side by side.
        markdown: Also write the review to this file, for a comment of a pull request.
    """
    if sample < 1:
        raise OptionError(f"--sample {sample}: expected 1 or more.")
    for option, file in (("--html", html), ("--markdown", markdown)):
        if file and not file.parent.is_dir():
            raise OptionError(f"{option} {file}: there is no folder {file.parent}. Create it.")
        if file and file.is_dir():
            raise OptionError(f"{option} {file}: is a folder. Name a file in it.")
    if python:
        words = iter(sys.argv[1:])
        command = [word for word in words if not (word == "--python" and next(words))]
        command = [word for word in command if not word.startswith("--python=")]
        try:
            return subprocess.run([python, "-m", "batchmill", *command], check=False).returncode
        except OSError as error:
            raise OptionError(f"--python {python}: {error.strerror}. Name its program.") from error
    from batchmill.runs import review as reviews  # Imports torch.

    messages, place = console(stderr=True, quiet=json), absolute(str(dataset))
    file = params.expanduser().absolute() if params else None
    with recorded_job(place, step=step or None) as job:
        changes = parse_params(param, file, job.step)
    result = reviews.review(
        place,
        params=changes,
        step=step or None,
        count=sample,
        seed=seed,
        on_sample=lambda count: messages.print(f"Executing {counted(count, 'input')} ..."),
    )
    if html:
        html.write_text(result.html(), "utf-8", "replace")
    if markdown:
        markdown.write_text(result.markdown(), "utf-8", "replace")
    if json:
        print_json(asdict(replace(result, most_changed=())))
    else:
        console().print(*result.lines(), sep="\n")
    return 0 if result.is_equal else DIFFERENT
