"""The upkeep of a run: what its end changes in records of earlier runs."""

import time
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.layout import UPKEEP
from batchmill.ledger.ledger import Ledger
from batchmill.ledger.parts import (
    MISSING,
    PART_SCHEMA,
    PRUNED,
    RECORDS_SCHEMA,
    current_records,
    has_result,
    with_inputs,
)
from batchmill.manifest import Manifest
from batchmill.planning.change_detection import TIMES
from batchmill.planning.plan import Plan
from batchmill.storage.large_tables import select, take
from batchmill.storage.name_search import rows_of
from batchmill.url_secrets import shown_url
from batchmill.urls import join


class Upkeep:
    """Collects the changes of one run, and writes them as one part.

    Each method sees the changes of the methods that were called before. They raise LedgerError and
    StoreError.

    Args:
        ledger: The ledger.
        run: The number of the run.
    """

    def __init__(self, ledger: Ledger, run: int) -> None:
        self._ledger = ledger
        self._run = run
        self._changes: list[pa.Table] = []

    def write(self) -> None:
        """Write the changes. Without changes, nothing is written."""
        if self._changes:
            self._ledger.rewrite_records(self._run, pa.concat_tables(self._changes))
            self._changes = []

    def record_planned(self, plan: Plan, manifest: Manifest, step: str) -> None:
        """Record which inputs are withdrawn or missing, and what makes others unchanged.

        That is the new TIMES of touched inputs, and the step of adopted inputs. Without it, the
        next run would read or execute these inputs again.

        Args:
            plan: The run's plan.
            manifest: The run's manifest.
            step: The identity of the run's step.
        """
        self._record_absences(plan.absences, manifest)
        names = pa.chunked_array([*plan.touched.chunks, *plan.adopted.chunks], pa.string())
        if len(names) == 0:
            return
        inputs = manifest.inputs
        records = with_inputs(self._current(), names)
        is_adopted = rows_of(records["input"], plan.adopted).is_valid()
        place = rows_of(records["input"], inputs["input"])
        times = {name: inputs[name].take(place) for name in TIMES}
        self._change(records, step=pc.if_else(is_adopted, step, records["step"]), **times)

    def _record_absences(self, absences: pa.Table, manifest: Manifest) -> None:
        if len(absences) == 0:
            return
        records = with_inputs(self._current(), absences["input"])
        place = rows_of(records["input"], absences["input"])
        missing = absences["input"].filter(pc.equal(absences["absence"], MISSING))
        places = [join(manifest.root, file) for file in manifest.missing_files(missing)]
        reasons = [f"{shown_url(place)}: no such file." for place in places]
        # An `ok` record has a message only while its file is missing.
        before = pc.if_else(pc.equal(records["outcome"], "ok"), "", records["message"])
        now = pa.array(reasons, pa.large_string())
        now = now.take(rows_of(records["input"], missing))
        message = pc.coalesce(now, before)
        self._change(records, absence=absences["absence"].take(place), message=message)

    def keep_results(self) -> None:
        """Keep the last good results of inputs that are not ok in this run.

        Their records get the rows and outputs of the earlier result. If the file of an input is
        missing, its earlier `ok` record is written again: a file that was moved away during a run
        must not change its outcome.
        """
        bad = _results_to_keep(self._all(["result_run"]), self._run)[0]["input"]
        if not len(bad):
            return
        records = with_inputs(self._all(PART_SCHEMA.names), bad)
        now, before = _results_to_keep(records, self._run)
        is_missing = pc.and_(pc.equal(now["outcome"], "missing"), pc.equal(before["outcome"], "ok"))
        source = pc.if_else(pc.is_valid(before["result_run"]), before["result_run"], before["run"])
        failed = _with(now, rows=before["rows"], outputs=before["outputs"], result_run=source)
        self._change(failed.filter(pc.invert(is_missing)))
        # Within a run, an `ok` record wins. The step was not started in this run.
        message = now.filter(is_missing)["message"]
        self._change(
            before.filter(is_missing), run=self._run, attempts=0, absence=MISSING, message=message
        )

    def drop_kept_results(self, plan: Plan) -> None:
        """Remove the earlier results of inputs that are not ok. `sweep` removes the files.

        An input of the plan that this run has not executed keeps its result. A record of this run
        would end the request to execute it.
        """
        records = self._current()
        is_own = pc.equal(records["run"], self._run)
        due = pa.concat_tables([plan.pending, *filter(None, [plan.left])])["input"]
        waits = pc.and_not(rows_of(records["input"], due).is_valid(), is_own)
        records = _with(records, attempts=pc.if_else(is_own, records["attempts"], 0))
        kept = records.filter(pc.and_not(pc.is_valid(records["result_run"]), waits))
        self._change(kept, rows="[]", outputs=[], result_run=None, run=self._run)

    def remove_withdrawn(self, withdrawn: pa.Table) -> None:
        """Remove the results of inputs that the manifest no longer lists.

        `sweep` removes the files.
        """
        if len(withdrawn) == 0:
            return
        records = with_inputs(self._current(), withdrawn["input"])
        self._change(
            records, outcome=PRUNED, rows="[]", outputs=[], finished_at=time.time(), run=self._run
        )

    def _change(self, records: pa.Table, **columns: Any) -> None:
        """Add records with other values in some columns."""
        if len(records):
            changed = _with(records, **columns).select(PART_SCHEMA.names)
            self._changes.append(changed.cast(RECORDS_SCHEMA))

    def _current(self) -> pa.Table:
        """Return the winning record of each input."""
        return current_records(self._all(PART_SCHEMA.names))

    def _all(self, columns: Iterable[str]) -> pa.Table:
        """Return some columns of all records. The changes of this run are the last ones."""
        records = self._ledger.all_records(columns)
        changes = [table.select(records.column_names) for table in self._changes]
        return pa.concat_tables([records, *changes], promote_options="permissive")


def keep_results_of_killed(ledger: Ledger) -> None:
    """Keep the results that a killed run has not kept. A run with a summary has done it.

    Such a run may also have removed earlier results on request, and deleted their files.
    """
    run = max(ledger.runs(), default=0)
    if run and not ledger.store.exists(ledger.summary_name(run)):
        if not any(name.startswith(f"{UPKEEP}{run:06d}-") for name in ledger.part_names()):
            ledger.adoptions.remove(run)  # It was killed before it kept results of earlier code.
        upkeep = Upkeep(ledger, run)
        upkeep.keep_results()
        upkeep.write()


def _results_to_keep(records: pa.Table, run: int) -> tuple[pa.Table, pa.Table]:
    """Return the records of a run without a result, and the earlier records with their results."""
    now = current_records(select(records, pc.equal(records["run"], run)))
    now = select(now, pc.invert(has_result(now)))
    before = current_records(select(records, pc.less(records["run"], run)))
    before = select(before, has_result(before))
    place = rows_of(now["input"], before["input"])
    return select(now, pc.is_valid(place)), take(before, place.drop_null())


def _with(records: pa.Table, **columns: Any) -> pa.Table:
    """Return records with other values in some columns: a column, or one value for all rows."""
    for name, values in columns.items():
        place = records.schema.get_field_index(name)
        kind = records.schema.field(name).type
        if not isinstance(values, pa.ChunkedArray):
            values = pa.repeat(pa.scalar(values, kind), len(records))
        records = records.set_column(place, name, values.cast(kind))
    return records
