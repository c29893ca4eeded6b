"""`batchmill failures`, `retry` and `reproduce`: what to do about inputs that are not ok."""

from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from pyarrow.csv import write_csv

from batchmill.api.jobs.failed_inputs import failure_table, release_inputs
from batchmill.cli.console import console, print_json
from batchmill.cli.options import Dataset, Json
from batchmill.core.ledger.open import open_ledger
from batchmill.core.outcome import one_line, visible
from batchmill.core.sizes import counted
from batchmill.datasets.publishing.metadata_table import for_csv
from batchmill.errors import OptionError

Inputs = Annotated[str, Parameter(help="Only these inputs. Use the names in the manifest.")]
FailureKinds = Annotated[
    tuple[str, ...],
    Parameter(help="Only inputs with this outcome, for example crashed. Repeatable."),
]
FailureGroups = Annotated[
    tuple[int, ...],
    Parameter(
        help="Only this group of failures with the same cause. `status` lists them. Repeatable."
    ),
]
_SHOWN_LINES = 20
# faulthandler writes this line before the stack of a worker that exceeds its time.
_STACK = ("Stack (most recent call first)", "Current thread 0x")


def failures(
    dataset: Dataset,
    /,
    *inputs: Inputs,
    kind: FailureKinds = (),
    group: FailureGroups = (),
    json: Json = False,
    csv: bool = False,
) -> None:
    """List the inputs of a dataset that are not ok: outcome, reason, traceback, printed text.

    ```
    batchmill failures dataset
    batchmill failures dataset --kind crashed --json
    batchmill failures dataset --group 1
    ```

    Args:
        csv: Print CSV, as in failures.csv.
    """
    if json and csv:
        raise OptionError("--json and --csv cannot be combined. Give one of them.")
    table = failure_table(open_ledger(str(dataset)), str(dataset), inputs, kind, group)
    if csv:
        text = BytesIO()
        write_csv(for_csv(table), text)
        print(text.getvalue().decode(), end="")
        return
    records = table.to_pylist()
    if json:
        print_json(records)
        return
    # A console takes fifty microseconds per line, and there may be a million lines.
    for line in map(visible, _lines(records)):
        print(line.expandtabs())
    out = console()
    if not records:
        out.print("No failed input matches." if inputs or kind or group else "No input has failed.")
    else:
        count = counted(len(records), "input is", "inputs are")
        out.print(f"{count} not ok. To print the complete texts, add --json or --csv.")


def retry(
    dataset: Dataset,
    /,
    *inputs: Inputs,
    kind: FailureKinds = (),
    group: FailureGroups = (),
    where: str = "",
    json: Json = False,
) -> None:
    """Let the next run over the dataset execute failed inputs again, or inputs with certain rows.

    Without this command, a run skips a failed input until its file, the step or the params change,
    or until you raise the limit that it exceeded.

    ```
    batchmill retry dataset
    batchmill retry dataset --kind crashed --kind oom
    batchmill retry dataset --group 1
    batchmill retry dataset recordings/a.wav
    batchmill retry dataset --where "finish_reason == 'length'"
    ```

    Args:
        where: The inputs of the rows that meet this condition, instead of failed inputs.
    """
    chosen = release_inputs(str(dataset), inputs, kind, group, where)
    if json:
        print_json({"released": chosen})
    elif chosen:
        console().print(f"The next run executes {counted(len(chosen), 'input')} again.")
    else:
        console().print(f"There is no {'such' if where else 'failed'} input to execute again.")


def reproduce(
    dataset: Dataset,
    input: str,
    /,
    *,
    output: Annotated[Path, Parameter(alias="-o")] = Path("reproduction.zip"),
) -> None:
    """Pack an input, the step, its params and the outcome into a zip file.

    The script `run.py` in it runs the step on the input, on any machine with batchmill. The step is
    imported here. Known credentials are replaced. Read the files before you share them.

    ```
    batchmill reproduce dataset recordings/a.wav -o bundle.zip
    ```

    Args:
        input: The input: its name in the manifest.
        output: The zip file to write.
    """
    # Imported here because the other commands do not need it.
    from batchmill.api.jobs.reproduction import write_reproduction

    write_reproduction(str(dataset), input, output.expanduser())
    console().print(f"{output}: written. Unpack it, and run: python run.py")


def _lines(records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the reason of each failure, and the lines of its texts. Equal texts follow once."""
    alike: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for record in records:
        calls = record["traceback"].rstrip().rpartition("\n")[0]  # The last line is the message.
        alike.setdefault((record["group"], calls, record["log"]), []).append(record)
    for same in alike.values():
        for record in same:
            why = one_line(record["error"], record["message"])
            yield f"{record['input']}: {record['outcome']}: {why} (group {record['group']})"
            if record["result_run"] is not None:
                yield f"    the result of run {record['result_run']} stays"
        for title, text in (("traceback", same[0]["traceback"]), ("printed", same[0]["log"])):
            lines, which = _most_telling(text.rstrip().splitlines())
            if lines:
                yield f"    {title}{which}:"
            for line in lines:
                yield f"        {line}"


def _most_telling(lines: list[str]) -> tuple[list[str], str]:
    """Return the lines to show, and their description.

    These are the first lines of the stack after a fatal error or a timeout, else the last lines.
    """
    if len(lines) <= _SHOWN_LINES:
        return lines, ""
    for beginning, end in (("Fatal Python error", "crash"), (_STACK, "kill")):
        starts = [index for index, line in enumerate(lines) if line.startswith(beginning)]
        if starts:
            stack = lines[starts[-1] :]
            return stack[:_SHOWN_LINES], f", the last {_SHOWN_LINES} calls before the {end}"
    return lines[-_SHOWN_LINES:], f", its last {_SHOWN_LINES} lines"
