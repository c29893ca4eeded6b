"""`batchmill verify`: compare a dataset's files with its ledger."""

from collections import Counter
from shlex import quote
from typing import Annotated

from cyclopts import Parameter

from batchmill.cli.console import console, print_json
from batchmill.cli.options import Dataset, Json
from batchmill.ledger.open import open_ledger
from batchmill.maintenance.verify import Difference, advice, examine
from batchmill.publishing.summary import adoption_lines
from batchmill.sizes import list_counts

_SHOWN = 50


def verify(
    dataset: Dataset,
    /,
    *,
    hash: Annotated[
        bool,
        Parameter(help="Compare the contents of all output files, not only their sizes."),
    ] = False,
    repair: Annotated[
        bool,
        Parameter(
            help="Let the next run execute the inputs of missing or changed files again, and "
            "remove unreferenced files."
        ),
    ] = False,
    version: Annotated[
        str, Parameter(help="Compare the files of this version only: its number or name.")
    ] = "",
    json: Json = False,
) -> int:
    """Compare a dataset's files with its ledger, and list missing, changed and unreferenced files.

    Also lists groups of inputs that are in several partitions. Inputs with the same content in
    different partitions cause a warning. If the manifest was a dataset, its partitions are compared
    too. The exit code is 1 if there is a difference. Examples:

    ```
    batchmill verify dataset
    batchmill verify dataset --hash --repair
    batchmill verify dataset --hash --version paper
    ```
    """
    ledger = open_ledger(str(dataset))
    found = examine(ledger, hash_files=hash, repair=repair, version=version or None)
    if json:
        print_json([difference._asdict() for difference in found])
    else:
        _show(str(dataset), found, version, repaired=repair)
        for line in adoption_lines(ledger):
            console().print(line)
    return 0 if all(difference.is_warning for difference in found) else 1


def _show(dataset: str, found: list[Difference], version: str, *, repaired: bool) -> None:
    out = console()
    for difference in found[:_SHOWN]:
        of = f" (of {difference.input})" if difference.input else ""
        why = f": {difference.message}" if difference.message else ""
        out.print(f"{difference.kind}: {difference.path}{of}{why}")
    if len(found) > _SHOWN:
        out.print(f"... and {len(found) - _SHOWN:,} more; --json lists all")
    counts: Counter[str] = Counter(difference.kind for difference in found)
    if found:
        out.print(list_counts(counts))
    if counts["duplicate"]:
        out.print(
            "Remove one of the inputs with the same content, or put them into one group: --group-by"
        )
    if all(difference.is_warning for difference in found):
        out.print(f"{dataset}: matches its ledger.")
        return
    if version:
        out.print(
            "A run can write only the files of the last version again. To compare that one: "
            f"batchmill verify {quote(dataset)}"
        )
    else:
        out.print(advice(dataset, found, repaired=repaired))
