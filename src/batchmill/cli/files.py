"""`batchmill files`: list the files of an input, or copy them out of a dataset."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from batchmill.cli.console import console, print_json
from batchmill.cli.options import Dataset, Json
from batchmill.ledger.open import open_ledger
from batchmill.maintenance.input_files import copy_files, input_files
from batchmill.sizes import counted, readable_size


def files(
    dataset: Dataset,
    input: Annotated[
        str, Parameter(help="An input of the dataset, or a file as in the column output.")
    ],
    /,
    *,
    output: Annotated[
        Path | None, Parameter(alias="-o", help="Copy the files into this folder.")
    ] = None,
    version: Annotated[str, Parameter(help="Read this version: its number or name.")] = "",
    json: Json = False,
) -> None:
    """List the files of an input, or copy them out of the dataset, also out of packs.

    ```
    batchmill files dataset a.wav
    batchmill files dataset a.wav -o copies
    ```
    """
    ledger = open_ledger(str(dataset))
    found = input_files(ledger, input, version or None)
    if output:
        copy_files(ledger, found, output)
    if json:
        print_json([file._asdict() for file in found])
        return
    out = console()
    if output:
        out.print(f"Copied {counted(len(found), 'file')} to {output}")
        return
    for file in found:
        out.print(f"{file.name}: {readable_size(file.size)}, {file.stored}")
    if not found:
        out.print(f"{input} has no files.")
