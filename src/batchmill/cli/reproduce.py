"""`batchmill reproduce`: pack an input and its step, to show its error elsewhere."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from batchmill.cli.console import console
from batchmill.cli.options import Dataset
from batchmill.jobs.reproduction import write_reproduction


def reproduce(
    dataset: Dataset,
    input: Annotated[str, Parameter(help="The input: its name in the manifest.")],
    /,
    *,
    output: Annotated[
        Path, Parameter(name=["--output", "-o"], help="The zip file to write.")
    ] = Path("reproduction.zip"),
) -> None:
    """Pack an input, the step, its params and the outcome into a zip file.

    The script `run.py` in it runs the step on the input, on any machine with batchmill. The step is
    imported here. Known credentials are replaced. Read the files before you share them.

    ```
    batchmill reproduce dataset recordings/a.wav -o bundle.zip
    ```
    """
    write_reproduction(str(dataset), input, output)
    console().print(f"{output}: written. Unpack it, and run: python run.py")
