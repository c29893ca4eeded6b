"""Check whether a table meets the expectations of a run, before it is published."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv

from batchmill.core.layout import BROKEN, INPUT_COLUMN
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.options.conditions import Condition, exact_frame, names_schema
from batchmill.core.outcome import one_line
from batchmill.core.planning.job_checks import load_schemas
from batchmill.core.planning.run_spec import SHOWN_NAMES, RunSpec
from batchmill.core.sizes import counted
from batchmill.datasets.publishing.metadata_table import for_csv

# The file has at most this number of rows per expectation.
_RECORDED = 1000


class _Broken(NamedTuple):
    """An expectation that a table breaks.

    Attributes:
        text: The expectation.
        rows: The numbers of the rows that break it. Empty if it cannot be evaluated.
        details: The values of the first rows.
        reason: Why the expectation cannot be evaluated, or what is wrong with the whole table.
    """

    text: str
    rows: np.ndarray
    details: Sequence[str] = ()
    reason: str = ""


def check_table(table: pa.Table, spec: RunSpec, ledger: Ledger) -> str:
    """Return why a table may not be published. Empty if it meets all expectations of its run.

    The first rows that break an expectation are written to the file `broken.csv` of the run.

    Args:
        table: The metadata table.
        spec: The settings of the run.
        ledger: The ledger of the dataset.
    """
    # A table without rows may lack the columns of the step.
    broken = list(_find_broken(table, spec)) if len(table) else []
    if not broken:
        return ""
    lines = ["Not published: the table breaks an expectation, so the dataset stays as it was."]
    for expectation in broken:
        lines += _lines(expectation, table)
    name = f"{ledger.run_folder(spec.run)}/{BROKEN}"
    parts = [_recorded(expectation, table) for expectation in broken if len(expectation.rows)]
    if parts:
        ledger.store.write_atomic(name, partial(pcsv.write_csv, pa.concat_tables(parts)))
        lines.append(f"Their rows: {ledger.store.url_of(name)}")
    lines.append(
        "Fix the step or the inputs, or change --expect, and run the same command again. Results "
        "that are ok are not executed again."
    )
    return "\n".join(lines)


def _find_broken(table: pa.Table, spec: RunSpec) -> Iterator[_Broken]:
    expectations = spec.policy.expect
    schemas = load_schemas(expectations, spec.search)
    for text in expectations:
        if names_schema(text):
            broken = _check_schema(text.strip(), schemas[text.strip()], table)
        else:
            broken = _check_condition(text, table)
        if broken:
            yield broken


def _check_condition(text: str, table: pa.Table) -> _Broken | None:
    condition = Condition(text)
    frame = condition.columns_of(table)
    try:
        is_ok = condition.evaluate(frame)
    except Exception as error:  # noqa: BLE001  # pandas raises errors of many types.
        reason = f"cannot be evaluated ({error}). The columns are {', '.join(table.column_names)}."
        return _Broken(text, np.array([], int), reason=reason)
    for name in set(frame.columns) - condition.handled:
        is_ok &= frame[name].notna()
    rows = np.flatnonzero(~is_ok.to_numpy())
    others = [name for name in frame.columns if name != INPUT_COLUMN]
    # The input is selected, because a table without columns would have no rows.
    shown = table.select([INPUT_COLUMN, *others]).take(rows[:SHOWN_NAMES]).to_pylist()
    details = [", ".join(f"{name} {row[name]}" for name in others) for row in shown]
    return _Broken(text, rows, details) if len(rows) else None


def _check_schema(text: str, schema: Any, table: pa.Table) -> _Broken | None:
    from pandera.errors import SchemaErrors  # An optional library. The schema has imported it.

    try:
        schema.validate(exact_frame(table), lazy=True)
    except SchemaErrors as error:
        cases = error.failure_cases
        of_rows = cases[cases["index"].notna()].drop_duplicates("index").sort_values("index")
        details = [
            f"{case.column} {case.failure_case} ({case.check})"
            for case in of_rows[:SHOWN_NAMES].itertuples()
        ]
        whole = [f"{c.failure_case} ({c.check})" for c in cases[cases["index"].isna()].itertuples()]
        reason = f"does not fit the table: {', '.join(whole)}." if whole else ""
        return _Broken(text, of_rows["index"].to_numpy(int), details, reason)
    return None


def _lines(broken: _Broken, table: pa.Table) -> Iterator[str]:
    if broken.reason:
        yield f"  {broken.text}: {broken.reason}"
    if not len(broken.rows):
        return
    rows = f"{len(broken.rows):,} of {counted(len(table), 'row')}"
    yield f"  {broken.text}: {rows} {'breaks' if len(broken.rows) == 1 else 'break'} it"
    inputs = table[INPUT_COLUMN].take(broken.rows[:SHOWN_NAMES]).to_pylist()
    for name, detail in zip(inputs, broken.details, strict=True):
        yield f"    {one_line(name, detail)}"
    if len(broken.rows) > SHOWN_NAMES:
        yield f"    ... and {len(broken.rows) - SHOWN_NAMES:,} more"


def _recorded(broken: _Broken, table: pa.Table) -> pa.Table:
    rows = for_csv(table.take(broken.rows[:_RECORDED]))
    return rows.add_column(0, "expectation", pa.array([broken.text] * len(rows), pa.string()))
