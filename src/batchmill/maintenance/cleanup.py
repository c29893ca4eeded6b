"""Removes old files and records from a dataset. Only the holder of its lease may do that."""

import time
from collections.abc import Set

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.layout import FILES, LEASES, RELEASED, STAGING
from batchmill.ledger.json_file import read_json
from batchmill.ledger.ledger import Ledger
from batchmill.ledger.parts import PART_SCHEMA, PRUNED, current_records
from batchmill.ledger.versions import records_of
from batchmill.maintenance.verify import named_files, output_paths, unreferenced
from batchmill.planning.change_detection import TIMES
from batchmill.planning.plan import Plan
from batchmill.storage import Store, in_threads

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
    strays = list(unreferenced(store, named_files(ledger)))
    in_threads(store.remove, strays, store.threads)


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


def sweep(ledger: Ledger, run: int, kept: int) -> None:
    """Remove old versions, and the files that no version names any more, at the end of a run.

    Args:
        ledger: The ledger.
        run: The number of the run. Its tables are published.
        kept: The number of versions to keep before the last one. Versions with a name always stay.
    """
    store, versions = ledger.store, [version.number for version in ledger.versions.read_all()]
    stay = {*versions[-1 - kept :], *ledger.versions.names().values()}
    dropped = [number for number in versions if number not in stay]
    if not dropped and ledger.last_recorded_run() != run:
        return  # The run has changed no record.
    records = ledger.all_records(["input_id", "attempts", "outputs"])
    now = current_records(records)
    named = set(output_paths(now))
    for number in stay.intersection(versions[:-1]):
        named.update(output_paths(records_of(records, number)))
    # Files of results since the previous version that did not win, and of removed versions.
    before = max((number for number in versions if number < run), default=0)
    gone = set(output_paths(records.filter(pc.greater(records["run"], before))))
    for number in (*dropped, before):
        gone.update(output_paths(records_of(records, number)))
    in_threads(store.delete, sorted(gone - named), store.threads)
    _remove_unrecorded(store, now.filter(pc.equal(now["run"], run)), named)
    # A version is removed after its files. If the process stops in between, the next run continues.
    for number in dropped:
        ledger.versions.remove(number)


def _remove_unrecorded(store: Store, executed: pa.Table, named: Set[str]) -> None:
    """Remove files of attempts that died before their outcome was committed."""
    is_odd = pc.or_(pc.not_equal(executed["outcome"], "ok"), pc.greater(executed["attempts"], 1))
    odd = set(executed["input_id"].filter(is_odd).to_pylist())
    if not odd:
        return
    folders = {name.split("/")[1] for name in named}
    left = [
        f"{FILES}/{name}"
        for name in store.names(FILES)
        if name not in folders and name.partition(".")[0] in odd
    ]
    in_threads(store.remove, left, store.threads)


def remove_withdrawn(ledger: Ledger, run: int, withdrawn: pa.Table) -> None:
    """Remove the results of inputs that the manifest no longer lists. `sweep` removes the files."""
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
    ledger.rewrite_records(run, records)


def compact(ledger: Ledger, run: int, many: int = MANY_PARTS) -> None:
    """Merge all parts of the ledger into one, if there are at least `many`.

    The records that no version needs are removed.
    """
    names = ledger.part_names()
    if len(names) < many:
        return
    records = ledger.all_records(PART_SCHEMA.names)
    stay = [current_records(records)]
    stay += [records_of(records, version.number) for version in ledger.versions.read_all()]
    ledger.rewrite_records(run, _distinct(pa.concat_tables(stay)))
    ledger.delete_parts(names)


def _distinct(records: pa.Table) -> pa.Table:
    """Return records without repetitions."""
    keys = records.select(["input", "run", "attempt"]).to_pandas()
    return records.filter(pa.array(~keys.duplicated()))


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
