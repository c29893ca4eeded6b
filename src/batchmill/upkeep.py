"""What a run does to a dataset besides recording outcomes. Only the holder of its lease may."""

import os
import time
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.lease import LEASES
from batchmill.ledger import FILES, PRUNED, STAGING, Ledger
from batchmill.outputs import remove_folder
from batchmill.plan import Plan

# Reading a part takes a millisecond: with so many, a dataset opens in half a second.
MANY_PARTS = 500


def sweep(ledger: Ledger) -> None:
    """Remove what a run that was killed has left: half-written files, and outputs of no record."""
    remove_folder(ledger.store.path(STAGING))
    for name in list(ledger.store.leftovers()):
        if not name.startswith(LEASES):  # Others may be trying to take it.
            ledger.store.delete(name)
    remove_unreferenced(ledger, ledger.records(["input_id", "outputs"]))


def remove_unreferenced(ledger: Ledger, records: pa.Table) -> None:
    """Remove the output folders that no record has files in."""
    has_files = pc.greater(pc.list_value_length(records["outputs"]), 0)
    referenced = set(records["input_id"].filter(has_files).to_pylist())
    folder = ledger.store.path(FILES)
    for name in os.listdir(folder) if folder.is_dir() else ():
        if name not in referenced:
            remove_folder(folder / name)


def note_touched(ledger: Ledger, run: int, plan: Plan, inputs: pa.Table) -> None:
    """Record the new times of inputs whose content is the same, to not read them again."""
    if len(plan.touched) == 0:
        return
    records = ledger.records()
    records = records.filter(pc.is_in(records["input"], value_set=_one(plan.touched)))
    place = pc.index_in(records["input"], value_set=_one(inputs["input"]))
    times = inputs["mtime_ns"].take(place)
    column = records.schema.get_field_index("mtime_ns")
    ledger.record_anew(run, records.set_column(column, "mtime_ns", times))


def remove_failed(ledger: Ledger, run: int) -> None:
    """Remove the files that inputs had of an earlier run, and have no more, for they failed."""
    records = ledger.records(["input_id", "outcome"], run=run)
    _remove(ledger, records["input_id"].filter(pc.not_equal(records["outcome"], "ok")).to_pylist())


def remove_withdrawn(ledger: Ledger, run: int, withdrawn: pa.Table) -> None:
    """Remove the records and files of inputs that the manifest no longer lists."""
    if len(withdrawn) == 0:
        return
    records = ledger.records()
    records = records.filter(pc.is_in(records["input"], value_set=_one(withdrawn["input"])))
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
    # The record first: files without a record are swept, a record without files would lie.
    ledger.record_anew(run, records)
    _remove(ledger, withdrawn["input_id"].to_pylist())


def compact(ledger: Ledger, run: int, many: int = MANY_PARTS) -> None:
    """Put all parts into one, when there are many."""
    names = ledger.part_names()
    if len(names) < many:
        return
    ledger.record_anew(run, ledger.records())
    ledger.drop_parts(names)


def _remove(ledger: Ledger, input_ids: Iterable[str]) -> None:
    for name in input_ids:
        remove_folder(ledger.store.path(f"{FILES}/{name}"))


def _one(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
