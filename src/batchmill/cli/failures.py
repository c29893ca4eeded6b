"""`batchmill failures`: which inputs are not ok, and why."""

import json as json_text
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
from cyclopts import Parameter

from batchmill.cli.console import console
from batchmill.cli.options import Dataset, Json
from batchmill.errors import OptionError
from batchmill.ledger.ledger import Ledger
from batchmill.ledger.open import open_ledger
from batchmill.outcome import KINDS, one_line, visible
from batchmill.publishing.tables import failure_records

Inputs = Annotated[str, Parameter(help="Only these inputs, as `failures` names them.")]
FailureKinds = Annotated[
    tuple[str, ...],
    Parameter(
        name="--kind",
        negative=(),
        show_default=False,
        help="Only this outcome, as crashed; may be given again.",
    ),
]
_SHOWN_LINES = 20


def failures(
    dataset: Dataset,
    /,
    *inputs: Inputs,
    kind: FailureKinds = (),
    json: Json = False,
    csv: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Print CSV, for tables.")
    ] = False,
) -> None:
    """List the inputs of a dataset that are not ok: outcome, reason, traceback, what was printed.

    ```
    batchmill failures dataset
    batchmill failures dataset --kind crashed --json
    ```
    """
    if json and csv:
        raise OptionError("--json and --csv: give one of them.")
    table = choose_failures(open_ledger(dataset), dataset, inputs, kind)
    if csv:
        print(table.to_pandas().to_csv(index=False), end="")
        return
    records = table.to_pylist()
    if json:
        print(json_text.dumps(records, ensure_ascii=False))
        return
    out = console()
    for record in records:
        why = one_line(record["error"], record["message"])
        out.print(visible(f"{record['input']}: {record['outcome']}: {why}"))
        for title, text in (("traceback", record["traceback"]), ("printed", record["log"])):
            lines, which = _most_telling(text.rstrip().splitlines())
            if lines:
                out.print(f"    {title}{which}:")
            for line in lines:
                out.print(f"        {visible(line)}")
    if not records:
        out.print("There are no such failed inputs." if inputs or kind else "No input has failed.")
    else:
        out.print(f"{count_inputs(len(records))} not ok. All of it: --json, --csv")


def _most_telling(lines: list[str]) -> tuple[list[str], str]:
    """Choose some lines, and say which: the last, or of a fatal error's stack the first."""
    fatal = [index for index, line in enumerate(lines) if line.startswith("Fatal Python error")]
    if fatal:
        stack = lines[fatal[-1] :]
        return stack[:_SHOWN_LINES], f", the last {_SHOWN_LINES} calls before the crash"
    if len(lines) > _SHOWN_LINES:
        return lines[-_SHOWN_LINES:], f", its last {_SHOWN_LINES} lines"
    return lines, ""


def choose_failures(
    ledger: Ledger, dataset: str, inputs: tuple[str, ...], kinds: tuple[str, ...]
) -> pa.Table:
    """Return the failed inputs of these names and kinds; by default all. Raises OptionError."""
    known = [name for name in KINDS if name not in ("ok", "cancelled")]
    unknown = sorted(set(kinds) - set(known))
    if unknown:
        raise OptionError(f"--kind {unknown[0]}: expected one of {', '.join(known)}.")
    failed = failure_records(ledger)
    missing = sorted(set(inputs) - set(failed["input"].to_pylist()))
    if missing:
        raise OptionError(
            f"{missing[0]}: is none of the failed inputs of {dataset}. "
            f"They are listed by: batchmill failures {dataset}"
        )
    if inputs:
        failed = failed.filter(pc.is_in(failed["input"], value_set=pa.array(inputs, pa.string())))
    if kinds:
        failed = failed.filter(pc.is_in(failed["outcome"], value_set=pa.array(kinds, pa.string())))
    return failed


def count_inputs(number: int) -> str:
    """Write a number of inputs, as a sentence begins.

    >>> count_inputs(1), count_inputs(2000)
    ('1 input is', '2,000 inputs are')
    """
    return "1 input is" if number == 1 else f"{number:,} inputs are"
