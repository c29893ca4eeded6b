"""`batchmill verify`: compare a dataset's files with its ledger."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from json import dumps
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

from cyclopts import Parameter

from batchmill.cli.console import console, print_json
from batchmill.cli.options import Dataset, Json
from batchmill.core.ledger.open import open_ledger
from batchmill.core.sizes import counted, list_counts
from batchmill.datasets.maintenance.verify import Difference, advice, examine
from batchmill.datasets.publishing.run_summary import adoption_lines
from batchmill.errors import OptionError

_SHOWN = 50


def verify(
    dataset: Dataset,
    /,
    *,
    hash: bool = False,
    repair: bool = False,
    version: str = "",
    execute: str = "",
    seed: int | None = None,
    root: str = "",
    deep: bool = False,
    trust_step: bool = False,
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    json: Json = False,
) -> int:
    """Compare a dataset's files with its ledger, and list missing, changed and unreferenced files.

    Also lists groups of inputs that are in several partitions. Inputs with the same content in
    different partitions cause a warning. If the manifest was a dataset, its partitions are compared
    too. The exit code is 1 if there is a difference. With --execute, results are made again
    instead: the exit code is 1 if one differs, or cannot be made again. Examples:

    ```
    batchmill verify dataset
    batchmill verify dataset --hash --repair
    batchmill verify dataset --hash --version paper
    batchmill verify dataset --execute 300
    ```

    Args:
        hash: Compare the contents of all output files, not only their sizes.
        repair: Let the next run execute the inputs of missing or changed files again, and
            remove unreferenced files.
        version: Compare the files of this version only: its number or name.
        execute: Make this number of results of the version again on this machine, a random
            sample, or `all`, and compare them. The step is imported here.
        seed: With --execute: choose the same sample.
        root: With --execute: the folder or URL of the inputs on this machine.
        deep: With --execute: also the dataset that this one was made from, and so on.
        trust_step: With --execute: also run a step of a notebook, which is code in the
            dataset.
        output: With --execute: also write the result to a JSON file.
    """
    if execute:
        if hash or repair:
            raise OptionError("--execute cannot be combined with --hash or --repair. Drop one.")
        chosen = {"version": version or None, "seed": seed, "root": root, "deep": deep}
        chosen["trust_step"] = trust_step
        return _execute(str(dataset), execute, chosen, output, as_json=json)
    if seed is not None or root or deep or output or trust_step:
        raise OptionError("--seed, --root, --deep, --output and --trust-step need --execute.")
    ledger = open_ledger(str(dataset))
    differences = examine(ledger, hash_files=hash, repair=repair, version=version or None)
    if json:
        print_json([difference._asdict() for difference in differences])
    else:
        _show(str(dataset), differences, version, repaired=repair)
        for line in adoption_lines(ledger):
            console().print(line)
    return 0 if all(difference.is_warning for difference in differences) else 1


def _execute(
    dataset: str, count: str, chosen: Mapping[str, Any], output: Path | None, *, as_json: bool
) -> int:
    # These modules import torch, which the other comparison does not need.
    from batchmill.runs.proof import ProofOptions, parse_count, prove, record_proof

    options = ProofOptions(count=parse_count(count), **chosen)
    if output and output.exists():
        raise OptionError(f"--output {output}: exists. Choose another name.")
    if output and not output.parent.is_dir():
        raise OptionError(f"--output {output}: there is no folder {output.parent}. Create it.")
    messages = console(stderr=True, quiet=as_json)
    proofs, unwritten = [], ""
    for proof in prove(
        dataset,
        options,
        on_begin=lambda count: messages.print(f"Making {counted(count, 'result')} again ..."),
    ):
        proofs.append(proof)
        unwritten = record_proof(proof) if len(proofs) == 1 else unwritten
        if not as_json:
            for line in proof.lines():
                console().print(line)
    document = [asdict(proof) for proof in proofs] if options.deep else asdict(proofs[0])
    if output:
        output.write_text(dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if as_json:
        print_json(document)
    if unwritten:
        messages.print(f"The result is not recorded in the dataset: {unwritten}")
    return 0 if all(proof.is_equal for proof in proofs) else 1


def _show(dataset: str, differences: list[Difference], version: str, *, repaired: bool) -> None:
    out = console()
    for difference in differences[:_SHOWN]:
        of = f" (of {difference.input})" if difference.input else ""
        why = f": {difference.message}" if difference.message else ""
        out.print(f"{difference.kind}: {difference.path}{of}{why}")
    if len(differences) > _SHOWN:
        out.print(f"... and {len(differences) - _SHOWN:,} more; --json lists all")
    counts: Counter[str] = Counter(difference.kind for difference in differences)
    if differences:
        out.print(list_counts(counts))
    if counts["duplicate"]:
        out.print(
            "Remove one of the inputs with the same content, or put them into one group: --group-by"
        )
    if all(difference.is_warning for difference in differences):
        out.print(f"{dataset}: matches its ledger.")
    elif version:
        out.print(
            "A run can write only the files of the last version again. To compare that one: "
            f"batchmill verify {quote(dataset)}"
        )
    else:
        out.print(advice(dataset, differences, repaired=repaired))
