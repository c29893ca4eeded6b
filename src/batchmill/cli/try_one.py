"""`batchmill try`: a step on one input, in this process."""

import json as json_text
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from batchmill.cli.options import Json, Params, ParamsFile, Step
from batchmill.digests import input_id
from batchmill.errors import OptionError
from batchmill.execute import Input, Workbench, execute
from batchmill.outcome import Outcome
from batchmill.params import parse_params
from batchmill.step import load_step

SHOWN_ROWS = 20
FAILED = 1


def try_one(
    input: Annotated[str, Parameter(help="One file.")],
    /,
    *,
    step: Step,
    param: Params = (),
    params: ParamsFile = None,
    row: Annotated[
        tuple[str, ...],
        Parameter(negative=(), help="Another column of the manifest, key=value; may be repeated."),
    ] = (),
    keep: Annotated[
        Path | None, Parameter(help="Folder to keep the files in that the step writes.")
    ] = None,
    json: Json = False,
) -> int:
    """Run a step on one input, here and now, without Prefect and Ray; show what it gives.

    ```
    batchmill try recording.flac --step batchmill.steps.audio:split --param seconds=2 --keep clips
    ```
    """
    if not os.path.isfile(input):
        raise OptionError(f"{input}: no such file. Check the path.")
    loaded = load_step(step, parse_params(param, params), search=os.getcwd())
    carried = parse_params(row)
    with ExitStack() as stack:
        if keep is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="batchmill-")))
        else:
            folder = keep.absolute()
            folder.mkdir(parents=True, exist_ok=True)
        name = os.path.basename(input)
        item = Input(name, input_id(name), os.path.abspath(input), carried)
        bench = Workbench(dataset=folder, attempt="try")
        outcome = execute(loaded, item, bench, lambda: loaded.dataset([item.path], [carried])[0])
    if json:
        print(json_text.dumps(_as_json(outcome), ensure_ascii=False))
    else:
        _show(outcome, keep)
    return 0 if outcome.kind == "ok" else FAILED


def _as_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "input": outcome.input,
        "outcome": outcome.kind,
        "seconds": outcome.seconds,
        "rows": json_text.loads(outcome.rows),
        "files": [file._asdict() for file in outcome.outputs],
        "error": outcome.error,
        "message": outcome.message,
        "traceback": outcome.traceback,
    }


def _show(outcome: Outcome, keep: Path | None) -> None:
    console = Console(highlight=False)
    console.print(f"{outcome.input}: {outcome.kind} in {outcome.seconds:.3f} s", markup=False)
    if outcome.kind != "ok":
        console.print(outcome.traceback or outcome.reason, markup=False, soft_wrap=True)
        return
    rows = json_text.loads(outcome.rows)
    if rows:
        keys = list(dict.fromkeys(key for row in rows for key in row))
        table = Table(*keys, title=f"{len(rows):,} rows", title_justify="left")
        for row in rows[:SHOWN_ROWS]:
            table.add_row(*[_cell(row.get(key)) for key in keys])
        console.print(table)
        if len(rows) > SHOWN_ROWS:
            console.print(f"... and {len(rows) - SHOWN_ROWS:,} more (all of them: --json)")
    size = sum(file.size for file in outcome.outputs)
    kept = f"kept in {keep}" if keep else "not kept (--keep FOLDER does)"
    if outcome.outputs:
        console.print(f"{len(outcome.outputs):,} files, {size:,} bytes, {kept}", markup=False)


def _cell(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else json_text.dumps(value)
