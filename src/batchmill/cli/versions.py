"""`batchmill versions`, `keep`, `diff` and `files`: what a dataset contains, by version."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from batchmill.cli.console import console, print_json
from batchmill.cli.options import Dataset, Json
from batchmill.core.ledger.open import open_ledger
from batchmill.core.sizes import counted, readable_size
from batchmill.datasets.maintenance.input_files import copy_files, input_files
from batchmill.datasets.maintenance.versions import (
    compare_versions,
    drop_name,
    keep_version,
    list_versions,
)
from batchmill.errors import OptionError

_SHOWN_NAMES = 5

WhichVersion = Annotated[str, Parameter(help="The number or name of a version.")]


def versions(dataset: Dataset, /, *, json: Json = False) -> None:
    """List the versions of a dataset that can be opened.

    Each run that changes the tables makes a version. The previous one stays (--keep-versions), and
    each one with a name (batchmill keep).

    ```
    batchmill versions dataset
    ```
    """
    listed = list_versions(open_ledger(str(dataset)))
    if json:
        print_json([entry._asdict() for entry in listed])
        return
    out = console()
    for entry in listed:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.created))
        names = f" ({', '.join(entry.names)})" if entry.names else ""
        params = ", ".join(f"{name}={value}" for name, value in entry.params.items())
        out.print(
            f"{entry.version}{names}: {when}, {counted(entry.rows, 'row')}, "
            f"{counted(entry.failures, 'failure')}, {entry.step}({params}), "
            f"{readable_size(entry.own_bytes)} that no other version has"
        )
        if entry.proof:
            out.print(f"  {entry.proof}")
    if not listed:
        out.print("No version yet: the first run that changes the tables makes one.")


def keep(
    dataset: Dataset, version: WhichVersion = "", /, *, name: str = "", drop: str = ""
) -> None:
    """Give a version of a dataset a name, so that no run removes it.

    ```
    batchmill keep dataset 12 --name paper
    batchmill keep dataset --drop paper
    ```

    Args:
        name: A name for the version, for example paper.
        drop: A name to remove.
    """
    if bool(drop) == bool(name) or bool(version) != bool(name):
        raise OptionError("give a version and --name, or only --drop with a name.")
    ledger = open_ledger(str(dataset))
    if drop:
        drop_name(ledger, drop)
        console().print(f"{drop} is no name any more. The next runs may remove its version.")
        return
    number = keep_version(ledger, version, name).number
    console().print(
        f"Version {number} of {dataset} is now {name}, and stays. To read it: "
        f"batchmill.open_dataset({str(dataset)!r}, version={name!r})"
    )


def diff(
    dataset: Dataset, before: WhichVersion, after: WhichVersion, /, *, json: Json = False
) -> None:
    """Compare two versions of a dataset: inputs that were added, removed or changed, and why.

    ```
    batchmill diff dataset 11 12
    batchmill diff dataset paper 12 --json
    ```
    """
    comparison = compare_versions(open_ledger(str(dataset)), before, after)
    if json:
        print_json(asdict(comparison))
        return
    out = console()
    out.print(f"{counted(comparison.before.rows, 'row')} before, {comparison.after.rows:,} after")
    groups = [("added", comparison.added), ("removed", comparison.removed)]
    groups += [(f"changed ({reason})", names) for reason, names in comparison.changed.items()]
    for what, names in groups:
        if names:
            more = ", ..." if len(names) > _SHOWN_NAMES else ""
            out.print(f"{what}: {len(names):,}: {', '.join(names[:_SHOWN_NAMES])}{more}")
    for name, (old, new) in comparison.libraries.items():
        out.print(f"library {name}: {', '.join(old) or 'none'} -> {', '.join(new) or 'none'}")
    if not any(names for _, names in groups):
        out.print("The rows and files are the same.")


def files(
    dataset: Dataset,
    input: str,
    /,
    *,
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    version: str = "",
    json: Json = False,
) -> None:
    """List the files of an input, or copy them out of the dataset, also out of packs.

    ```
    batchmill files dataset a.wav
    batchmill files dataset a.wav -o copies
    ```

    Args:
        input: An input of the dataset, or a file as in the column output.
        output: Copy the files into this folder.
        version: Read this version: its number or name.
    """
    ledger = open_ledger(str(dataset))
    outputs = input_files(ledger, input, version or None)
    if output:
        copy_files(ledger, outputs, output.expanduser())
    out = console()
    if json:
        print_json([file._asdict() for file in outputs])
    elif output:
        out.print(f"Copied {counted(len(outputs), 'file')} to {output}")
    elif not outputs:
        out.print(f"{input} has no files.")
    else:
        for file in outputs:
            out.print(f"{file.name}: {readable_size(file.size)}, {file.stored}")
