"""Removes old files and records from a dataset. Only the holder of its lease may do that."""

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import or_
from pathlib import PurePosixPath

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.digests import input_id
from batchmill.core.layout import FILES, LEASES, PARTS, RELEASED, STAGING
from batchmill.core.ledger.json_file import read_json
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.parts import fetch
from batchmill.core.ledger.recorded_outputs import file_names, packed_paths
from batchmill.core.ledger.state import OK, PLACES, State, result_places
from batchmill.core.storage import Store, in_threads
from batchmill.core.storage.addresses import parse_address
from batchmill.core.storage.large_tables import Column
from batchmill.datasets.maintenance.packs import cut_packs, rewrite_packs, unused_packs

# A run adds four or five files. The report shows the last runs.
KEPT_RUNS = 500
_NONE = np.zeros(0, np.int64)


def remove_orphans(ledger: Ledger) -> None:
    """Remove the leftovers of a killed run: incomplete files, and outputs without a record."""
    store = ledger.store
    store.remove(STAGING)
    remove_incomplete(store)
    store.abort_uploads()
    ledger.snapshots.remove_incomplete()
    in_threads(store.remove, list(unreferenced(ledger)), store.threads)
    cut_packs(ledger)


def remove_incomplete(store: Store) -> None:
    """Remove the incomplete files of killed processes."""
    for name in list(store.leftovers()):
        if not name.startswith(LEASES):  # Other runs may be trying to take the lease.
            store.delete(name)


def sweep(ledger: Ledger, state: State, run: int, kept: int | None) -> None:
    """Remove old versions, and the files that no snapshot names any more, at the end of a run.

    Args:
        ledger: The ledger.
        state: The state that the run has left.
        run: The number of the run.
        kept: The number of versions to keep before the last one. Versions with a name always stay.
            None: the run has published nothing, and all versions stay.
    """
    store, snapshots = ledger.store, ledger.snapshots.read_all()
    versions = [snapshot.number for snapshot in snapshots if snapshot.is_version]
    stay = {*(versions if kept is None else versions[-1 - kept :])}
    stay |= {*ledger.snapshots.names().values(), *(snapshot.number for snapshot in snapshots[-1:])}
    dropped = [snapshot for snapshot in snapshots if snapshot.number not in stay]
    if not dropped and (not snapshots or snapshots[-1].number != run):
        return
    before = max((snapshot.number for snapshot in snapshots if snapshot.number < run), default=0)
    remaining = [snapshot for snapshot in snapshots if snapshot.number in stay]
    # The tables of an earlier version do not name the results of withdrawn inputs.
    kept_states = [*map(ledger.files.read_state, remaining[:-1])]
    states = [*(kept_state.listed() for kept_state in kept_states), state]
    old = [*map(ledger.files.read_state, dropped)]
    gone = _lost_results(ledger, states, [*old, *kept_states], before)
    # A reader may have opened a dropped snapshot. The next run removes its parts.
    named = {name for any_state in (*states, *old) for name in any_state.named_parts}
    # Nothing may name or keep a version without its files, so it is removed first. If the process
    # stops in between, the next run removes the files.
    numbers = [snapshot.number for snapshot in dropped]
    in_threads(ledger.snapshots.remove, numbers, store.threads)
    # A proof of a removed version may have just been written.
    proofs = [number for number in ledger.proofs.numbers() if number not in stay]
    in_threads(ledger.proofs.remove, proofs, store.threads)
    ledger.snapshots.remove_incomplete()
    left = {*file_names(gone).to_pylist()} - _files_of(states, gone["input"])
    loose = {name for name in left if not parse_address(name)}
    in_threads(store.delete, sorted(loose), store.threads)
    if left != loose:
        records = [any_state.records(["outputs"]) for any_state in states]
        in_threads(store.delete, unused_packs(store, _all_files(records)), store.threads)
        rewrite_packs(store, reduce(or_, map(packed_paths, records)))
    _remove_unrecorded(store, state.of_run(run), states)
    unnamed = [f"{PARTS}/{name}" for name in ledger.part_names() if name not in named]
    in_threads(store.delete, unnamed, store.threads)


def _lost_results(
    ledger: Ledger, states: Sequence[State], earlier: Sequence[State], before: int
) -> pa.Table:
    """Return `input` and `outputs` of the results that none of the states refers to.

    They are those of earlier states, and those of runs after `before` that did not count.
    """
    names = ledger.part_names()
    numbers = {name: number for number, name in enumerate(names)}
    new = [name for name in names if ledger.run_of(name) > before]
    new_keys = [np.arange(ledger.count_records(name)) + (numbers[name] << 32) for name in new]
    pairs = [(_NONE, _NONE), *((keys, keys) for keys in new_keys)]
    pairs += [_results(state, numbers) for state in earlier]
    keys, places = (np.concatenate(column) for column in zip(*pairs, strict=True))
    every, first = np.unique(keys, return_index=True)
    stays = np.concatenate([_results(state, numbers)[0] for state in states])
    place = places[first[~np.isin(every, stays)]]
    place = place[place >> 32 < len(names)]  # The others are in parts that were moved away.
    part, row = pa.array(place >> 32), pa.array(place & 0xFFFFFFFF)
    return fetch(ledger.unchanging, names, part, row, ["input", "outputs"])


def _results(state: State, numbers: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the identity and the place of each result of a state, as numbers: part and row.

    Args:
        state: The state.
        numbers: The number of each part. Further parts are added.
    """
    known = np.array([numbers.setdefault(name, len(numbers)) for name in state.parts], np.int64)
    places = [column.to_numpy() for column in result_places(state.table)]
    origins = [
        pc.coalesce(state.table[name], pa.chunked_array([place])).to_numpy()
        for name, place in zip(PLACES[2], places, strict=True)
    ]
    return tuple((known[part] << 32) | row for part, row in (origins, places))


def _files_of(states: Iterable[State], inputs: Column) -> set[str]:
    """Return the names of the outputs that some inputs have in several states."""
    return _all_files(state.of(inputs).records(["outputs"]) for state in states)


def _all_files(records: Iterable[pa.Table]) -> set[str]:
    return {name for table in records for name in file_names(table).to_pylist()}


def _remove_unrecorded(store: Store, executed: State, states: Sequence[State]) -> None:
    """Remove files of attempts that died before their outcome was committed."""
    table = executed.table
    is_odd = pc.or_(pc.not_equal(table["outcome"], OK), pc.greater(table["attempts"], 1))
    odd = executed.names.filter(is_odd)
    if not len(odd):
        return
    store.abort_uploads()
    ids = {*map(input_id, odd.to_pylist())}
    folders = {name.split("/")[1] for name in _files_of(states, odd)}
    left = [
        f"{FILES}/{name}"
        for name in store.names(FILES)
        if name not in folders and name.partition(".")[0] in ids
    ]
    in_threads(store.remove, left, store.threads)


def forget_released(ledger: Ledger, state: State) -> None:
    """Remove the requests to retry whose inputs all have later outcomes."""
    for name in ledger.store.names(RELEASED):
        content = read_json(ledger.store, f"{RELEASED}/{name}", "run", "inputs")
        waiting = state.of(pa.array(content["inputs"], pa.string())).table["run"]
        if not pc.any(pc.less_equal(waiting, content["run"])).as_py():
            ledger.store.delete(f"{RELEASED}/{name}")


def forget_runs(ledger: Ledger, run: int, kept: int = KEPT_RUNS) -> None:
    """Remove the folders of all but the last `kept` runs and the runs of snapshots."""
    old = {number for number in ledger.runs() if number <= run - kept}
    if old:
        # A version can be proved as long as it exists, and its step may be in its run's folder.
        folders = [ledger.run_folder(number) for number in old - {*ledger.snapshots.numbers()}]
        in_threads(ledger.store.remove, folders, ledger.store.threads)


def named_files(ledger: Ledger) -> set[str]:
    """Return the names of all outputs of the dataset and of its snapshots."""
    earlier = (
        ledger.files.read_state(snapshot).listed() for snapshot in ledger.snapshots.read_all()
    )
    return _all_files(state.records(["outputs"]) for state in (ledger.state(), *earlier))


def unreferenced(ledger: Ledger) -> Iterator[str]:
    """Yield the outputs that nothing names. A folder without any named output is one item."""
    store, named = ledger.store, named_files(ledger)
    yield from unused_packs(store, named)
    folders = {str(above) for name in named for above in PurePosixPath(name).parents}
    last = ""
    for name in store.files(FILES):
        if name in named:
            continue
        path = PurePosixPath(name)
        above = map(str, [*reversed(path.parents), path])
        strays = (part for part in above if part not in folders and part not in (".", FILES))
        # The default is a file at a path that is a folder in the ledger. An empty folder at such a
        # path is no stray: its outputs are missing.
        stray = next(strays, "" if name.endswith("/") else name)
        if stray not in ("", last):
            yield stray
        last = stray
