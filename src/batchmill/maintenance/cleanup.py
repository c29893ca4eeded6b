"""Removes old files and records from a dataset. Only the holder of its lease may do that."""

from collections.abc import Set
from functools import reduce
from operator import or_

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchmill.layout import FILES, LEASES, RELEASED, STAGING
from batchmill.ledger.json_file import read_json
from batchmill.ledger.ledger import Ledger
from batchmill.ledger.parts import (
    KEYS,
    PART_SCHEMA,
    PRUNED,
    current_records,
    file_names,
    packed_paths,
    winning_rows,
)
from batchmill.ledger.versions import records_of
from batchmill.maintenance.pack_upkeep import cut_packs, rewrite_packs, unused_packs
from batchmill.maintenance.verify import named_files, unreferenced
from batchmill.storage import Store, in_threads
from batchmill.storage.addresses import parse_address
from batchmill.storage.large_tables import select, take
from batchmill.storage.name_search import repeated

# Reading a part takes a millisecond, so a dataset with this number opens in half a second.
MANY_PARTS = 500
# A run adds four or five files. An open dataset needs the plans of all later runs, so they are kept
# longer than the report needs.
KEPT_RUNS = 500


def remove_orphans(ledger: Ledger) -> None:
    """Remove the leftovers of a killed run: incomplete files, and outputs without a record."""
    store = ledger.store
    store.remove(STAGING)
    remove_incomplete(store)
    store.abort_uploads()
    strays = list(unreferenced(store, named_files(ledger)))
    in_threads(store.remove, strays, store.threads)
    cut_packs(ledger)


def remove_incomplete(store: Store) -> None:
    """Remove the incomplete files of killed processes."""
    for name in list(store.leftovers()):
        if not name.startswith(LEASES):  # Other runs may be trying to take the lease.
            store.delete(name)


def sweep(ledger: Ledger, run: int, kept: int | None) -> None:
    """Remove old versions, and the files that no version names any more, at the end of a run.

    Args:
        ledger: The ledger.
        run: The number of the run.
        kept: The number of versions to keep before the last one. Versions with a name always stay.
            None: the run has published nothing, and all versions stay.
    """
    store, versions = ledger.store, [version.number for version in ledger.versions.read_all()]
    # The last version has the tables of this run, if it has published them.
    earlier, newest = versions[:-1], versions[-1 - (kept or 0) :]
    if kept is None:
        earlier = newest = versions
    stay = {*newest, *ledger.versions.names().values()}
    dropped = [number for number in versions if number not in stay]
    if not dropped and ledger.last_recorded_run() != run:
        return
    records = ledger.all_records(["input_id", "attempts", "outputs"])
    now = current_records(records)
    named = _names(now)
    for number in stay.intersection(earlier):
        named |= _names(records_of(records, number))
    # Files of results since the previous version that did not win, and of removed versions.
    before = max((number for number in versions if number < run), default=0)
    gone = _names(records.filter(pc.greater(records["run"], before)))
    for number in (*dropped, before):
        gone |= _names(records_of(records, number))
    left = gone - named
    loose = {name for name in left if not parse_address(name)}
    in_threads(store.delete, sorted(loose), store.threads)
    if left != loose:
        in_threads(store.delete, unused_packs(store, named), store.threads)
        tables = [now, *(records_of(records, number) for number in stay.intersection(versions))]
        rewrite_packs(store, reduce(or_, map(packed_paths, tables)))
    _remove_unrecorded(store, now.filter(pc.equal(now["run"], run)), named)
    # A version is removed after its files. If the process stops in between, the next run continues.
    for number in dropped:
        ledger.proofs.remove(number)
        ledger.versions.remove(number)


def _names(records: pa.Table) -> set[str]:
    return set(file_names(records).to_pylist())


def _remove_unrecorded(store: Store, executed: pa.Table, named: Set[str]) -> None:
    """Remove files of attempts that died before their outcome was committed."""
    is_odd = pc.or_(pc.not_equal(executed["outcome"], "ok"), pc.greater(executed["attempts"], 1))
    odd = set(executed["input_id"].filter(is_odd).to_pylist())
    if not odd:
        return
    store.abort_uploads()
    folders = {name.split("/")[1] for name in named}
    left = [
        f"{FILES}/{name}"
        for name in store.names(FILES)
        if name not in folders and name.partition(".")[0] in odd
    ]
    in_threads(store.remove, left, store.threads)


def compact(ledger: Ledger, run: int, many: int = MANY_PARTS) -> None:
    """Merge all parts of the ledger into few, if there are at least `many`.

    The records that no version needs are removed. The later ones stay, so that `sweep` finds their
    files.
    """
    names = ledger.part_names()
    if len(names) < many:
        return
    records = ledger.all_records(PART_SCHEMA.names)
    versions = [version.number for version in ledger.versions.read_all()]
    # A record of a removed input must stay as long as an earlier record of the same input stays.
    keys = records.select(KEYS)
    runs = records["run"].to_numpy()
    wins = winning_rows(keys)
    for number in versions:
        rows = np.flatnonzero(runs <= number)
        wins[rows[winning_rows(take(keys, pa.array(rows)))]] = True
    stays = _distinct(keys, wins) & (wins | (runs > max(versions, default=0)))
    merged = select(records, stays)
    ledger.rewrite_records(run, select(merged, _is_needed(merged)))
    ledger.delete_parts(names)


def _distinct(keys: pa.Table, wins: np.ndarray) -> np.ndarray:
    """Return which records are no repetitions: of each input, run and attempt the one that wins."""
    rows, numbers = repeated(keys["input"])
    frame = keys.select(["run", "attempt"]).take(pa.array(rows)).to_pandas()
    # The last of equal ones stays.
    frame = frame.assign(input=numbers, row=rows, wins=wins[rows]).sort_values(["wins", "row"])
    is_distinct = np.ones(len(keys), bool)
    is_repetition = frame.duplicated(["input", "run", "attempt"], keep="last")
    is_distinct[frame["row"][is_repetition]] = False
    return is_distinct


def _is_needed(records: pa.Table) -> np.ndarray:
    """Return which records are not the only record of a removed input."""
    is_needed = np.asarray(pc.not_equal(records["outcome"], PRUNED))
    is_needed[repeated(records["input"])[0]] = True
    return is_needed


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
