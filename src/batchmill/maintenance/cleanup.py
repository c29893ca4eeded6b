"""Removes old files and records from a dataset. Only the holder of its lease may do that."""

import time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.layout import FILES, LEASES, RELEASED, STAGING
from batchmill.ledger.json_file import read_json
from batchmill.ledger.ledger import Ledger
from batchmill.ledger.parts import PART_SCHEMA, PRUNED, current_records
from batchmill.maintenance.verify import recorded_files, unreferenced
from batchmill.planning.change_detection import TIMES
from batchmill.planning.plan import Plan
from batchmill.planning.plan_file import PlanFile
from batchmill.planning.run_spec import planned_names
from batchmill.storage import in_threads

# Reading a part takes a millisecond, so a dataset with this number opens in half a second.
MANY_PARTS = 500
# A run adds four or five files. An open dataset needs the plans of all later runs, so they are kept
# longer than the report needs.
KEPT_RUNS = 500


def remove_orphans(ledger: Ledger) -> None:
    """Remove the leftovers of a killed run: half-written files, and outputs without a record."""
    store = ledger.store
    store.remove(STAGING)
    for name in list(store.leftovers()):
        if not name.startswith(LEASES):  # Other runs may be trying to take the lease.
            store.delete(name)
    strays = list(unreferenced(store, recorded_files(ledger)))
    in_threads(store.remove, strays, store.threads)


def release_replaced(ledger: Ledger, pending: pa.ChunkedArray) -> bool:
    """Release inputs whose files a killed run has replaced without a record.

    This happens if the input or the step was changed back after the kill. If the input is pending
    anyway, its files are not read.

    Args:
        ledger: The ledger of the dataset.
        pending: The names of the inputs that the next run executes.

    Returns:
        True if an input was released.
    """
    run = max(ledger.runs(), default=0)
    if not ledger.store.exists(PlanFile(ledger, run).settings_name):
        return False
    planned = planned_names(ledger, run)
    done = [*pending.chunks, *ledger.records(["input"], run=run)["input"].chunks]
    is_done = pc.is_in(planned, value_set=pa.chunked_array(done, pa.string()))
    suspects = planned.filter(pc.invert(is_done))
    records = ledger.records(["input", "outputs"])
    records = records.filter(pc.is_in(records["input"], value_set=suspects))

    def differs(record: dict[str, Any]) -> bool:
        content_of = ledger.store.content_of
        return any(content_of(file["path"]) != file["content"] for file in record["outputs"])

    rows = records.to_pylist()
    flags = in_threads(differs, rows, ledger.store.threads)
    names = [row["input"] for row, flag in zip(rows, flags, strict=True) if flag]
    if names:
        ledger.release(names)
    return bool(names)


def record_touched(ledger: Ledger, run: int, plan: Plan, inputs: pa.Table) -> None:
    """Record the new TIMES of inputs whose content is unchanged.

    Without this, the next run would read these inputs again.
    """
    if len(plan.touched) == 0:
        return
    records = ledger.records()
    records = records.filter(pc.is_in(records["input"], value_set=plan.touched))
    place = pc.index_in(records["input"], value_set=inputs["input"])
    for name in TIMES:
        column = records.schema.get_field_index(name)
        records = records.set_column(column, name, inputs[name].take(place))
    ledger.rewrite_records(run, records)


def keep_results(ledger: Ledger, run: int, records: pa.Table | None = None) -> bool:
    """Record the `ok` results of earlier runs again, if their inputs are missing in this run.

    A file that was moved away during a run must not remove its result.

    Args:
        ledger: The ledger.
        run: The number of the run.
        records: All records, with any columns. Read by default.

    Returns:
        True if results were recorded.
    """
    records = ledger.all_records([]) if records is None else records
    now = current_records(records.filter(pc.equal(records["run"], run)))
    missing = now["input"].filter(pc.equal(now["outcome"], "missing"))
    if not len(missing):
        return False
    records = ledger.all_records(PART_SCHEMA.names)
    before = current_records(records.filter(pc.less(records["run"], run))).select(PART_SCHEMA.names)
    is_ok = pc.equal(before["outcome"], "ok")
    kept = before.filter(pc.and_(is_ok, pc.is_in(before["input"], value_set=missing)))
    if not len(kept):
        return False
    # Within a run, an `ok` record wins. The step was not started in this run.
    for name, value in (("run", run), ("attempts", 0)):
        column = kept.schema.get_field_index(name)
        kept = kept.set_column(column, name, pa.array([value] * len(kept), pa.int32()))
    ledger.rewrite_records(run, kept)
    return True


def remove_replaced(ledger: Ledger, run: int) -> None:
    """Remove files of earlier runs or attempts that the inputs' new outcomes do not name.

    The files of results that `keep_results` records stay.
    """
    store = ledger.store
    # All steps share one read, because a ledger may have many parts.
    columns = ["input_id", "attempts", "outputs"]
    records = ledger.all_records(columns)
    if keep_results(ledger, run, records):
        records = ledger.all_records(columns)
    now = current_records(records.filter(pc.equal(records["run"], run)))
    before = current_records(records.filter(pc.less(records["run"], run)))
    before = before.filter(pc.is_in(before["input"], value_set=now["input"]))
    named = set(_paths(now).to_pylist())
    in_threads(store.delete, sorted(set(_paths(before).to_pylist()) - named), store.threads)
    # An attempt may have died after it wrote its outputs and before its outcome was committed.
    odd = pc.or_(pc.not_equal(now["outcome"], "ok"), pc.greater(now["attempts"], 1))

    def tidy(identifier: str) -> None:
        for name in list(store.files(f"{FILES}/{identifier}")):
            if name not in named:
                store.remove(name)

    in_threads(tidy, now["input_id"].filter(odd).to_pylist(), store.threads)


def remove_withdrawn(ledger: Ledger, run: int, withdrawn: pa.Table) -> None:
    """Remove the records and files of inputs that the manifest no longer lists."""
    if len(withdrawn) == 0:
        return
    records = ledger.records()
    records = records.filter(pc.is_in(records["input"], value_set=withdrawn["input"]))
    count = len(records)
    changes = {
        "outcome": pa.array([PRUNED] * count),
        "rows": pa.array(["[]"] * count),
        "outputs": pa.array([[]] * count, records.schema.field("outputs").type),
        "finished_at": pa.array([time.time()] * count),
        "run": pa.array([run] * count, pa.int32()),
    }
    for name, values in changes.items():
        records = records.set_column(records.schema.get_field_index(name), name, values)
    # The record first: a later run removes files without a record, but a record without its files
    # would be wrong.
    ledger.rewrite_records(run, records)
    folders = [f"{FILES}/{name}" for name in withdrawn["input_id"].to_pylist()]
    in_threads(ledger.store.remove, folders, ledger.store.threads)


def compact(ledger: Ledger, run: int, many: int = MANY_PARTS) -> None:
    """Merge all parts of the ledger into one, if there are at least `many`."""
    names = ledger.part_names()
    if len(names) < many:
        return
    ledger.rewrite_records(run, ledger.records())
    ledger.delete_parts(names)


def forget_released(ledger: Ledger) -> None:
    """Remove the requests to retry whose inputs all have later outcomes."""
    names = ledger.store.names(RELEASED)
    if not names:
        return
    records = ledger.records(["input", "run"])
    for name in names:
        content = read_json(ledger.store, f"{RELEASED}/{name}", "run", "inputs")
        is_listed = pc.is_in(records["input"], value_set=pa.array(content["inputs"], pa.string()))
        waits = pc.and_(is_listed, pc.less_equal(records["run"], content["run"]))
        if not pc.any(waits).as_py():
            ledger.store.delete(f"{RELEASED}/{name}")


def forget_runs(ledger: Ledger, run: int, kept: int = KEPT_RUNS) -> None:
    """Remove the folders of all but the last `kept` runs, at the end of a run."""
    old = [ledger.run_folder(number) for number in ledger.runs() if number <= run - kept]
    in_threads(ledger.store.remove, old, ledger.store.threads)


def _paths(records: pa.Table) -> pa.Array:
    return records["outputs"].combine_chunks().flatten().field("path")
