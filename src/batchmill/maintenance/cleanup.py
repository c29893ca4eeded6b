"""Removes old files and records from a dataset. Only the holder of its lease may do that.

Packs that nothing names are removed. Packs of which little is still used are written again.
"""

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import reduce
from operator import or_
from pathlib import PurePosixPath

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchmill.layout import FILES, LEASES, METADATA, PACKS, PUBLISHED, RELEASED, STAGING
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
from batchmill.storage import Store, in_threads
from batchmill.storage.addresses import BLOCK, Address, encode_moved, list_of_moved, parse_address
from batchmill.storage.large_tables import select, take
from batchmill.storage.name_search import repeated
from batchmill.storage.pack_writer import encode_member

# Reading a part takes a millisecond, so a dataset with this number opens in half a second.
MANY_PARTS = 500
# A run adds four or five files. An open dataset needs the plans of all later runs, so they are kept
# longer than the report needs.
KEPT_RUNS = 500
# A pack is written again if less than this share of its bytes is used.
_LEAST_USED = 0.5
# The packs that are written again are joined up to about this size in bytes.
_JOINED_BYTES = 256 * 2**20


def remove_orphans(ledger: Ledger) -> None:
    """Remove the leftovers of a killed run: incomplete files, and outputs without a record."""
    store = ledger.store
    store.remove(STAGING)
    remove_incomplete(store)
    store.abort_uploads()
    ledger.versions.remove_incomplete()
    last = ledger.versions.read_all()[-1:]
    if last and not store.exists(PUBLISHED):
        # The table may have no version, which keeps its files. The next tables replace it.
        store.copy(ledger.versions.table_name(last[0].number), METADATA)
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
    store, versions = ledger.store, ledger.versions.numbers()
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
    # Nothing may name or keep a version without its files, so it is removed first. If the process
    # stops in between, the next run removes the files.
    for number in dropped:
        ledger.proofs.remove(number)
        ledger.versions.remove(number)
    loose = {name for name in left if not parse_address(name)}
    in_threads(store.delete, sorted(loose), store.threads)
    if left != loose:
        in_threads(store.delete, unused_packs(store, named), store.threads)
        tables = [now, *(records_of(records, number) for number in stay.intersection(versions))]
        rewrite_packs(store, reduce(or_, map(packed_paths, tables)))
    _remove_unrecorded(store, now.filter(pc.equal(now["run"], run)), named)


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
    versions = ledger.versions.numbers()
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


def named_files(ledger: Ledger) -> set[str]:
    """Return the names of all outputs of the dataset and of its versions."""
    records = ledger.all_records(["outputs"])
    tables = [current_records(records)]
    tables += [records_of(records, number) for number in ledger.versions.numbers()]
    return {name for table in tables for name in file_names(table).to_pylist()}


def unreferenced(store: Store, named: Set[str]) -> Iterator[str]:
    """Yield the outputs that are not `named`. A folder without any named output is one item."""
    yield from unused_packs(store, named)
    folders = {str(above) for name in named for above in PurePosixPath(name).parents}
    last = ""
    for name in store.files(FILES):
        if name in named or name == FILES:
            continue
        above = [*map(str, reversed(PurePosixPath(name).parents)), name]
        # The default is a file or an empty folder at a path that is a folder in the ledger.
        strays = (part for part in above if part not in folders and part not in (".", FILES))
        stray = next(strays, name)
        if stray != last:
            yield stray
        last = stray


def cut_packs(ledger: Ledger) -> None:
    """Cut each pack after its last recorded file. A tar program rejects an incomplete file."""
    ends: dict[str, int] = {}
    for name in file_names(ledger.all_records(["outputs"])).to_pylist():
        place = parse_address(name)
        if place:
            ends[place.pack] = max(ends.get(place.pack, 0), place.end)
    for pack, end in ends.items():
        ledger.store.cut(pack, end)


def unused_packs(store: Store, named: Iterable[str]) -> list[str]:
    """Return the files in the folder of packs that no output needs.

    Args:
        store: The dataset's store.
        named: The names of all outputs that stay.
    """
    present = _present(store)
    lengths: dict[str, int | None] = {}
    needed = set()
    for place in {parse_address(name) for name in named} if present else ():
        if place and place.pack in present:
            needed.add(place.pack)
        elif place and (now := store.packed.find(place, lengths)):
            needed |= {list_of_moved(place.pack), now.pack}
    return sorted(present - needed)


def rewrite_packs(store: Store, paths: Mapping[str, str]) -> None:
    """Write files again that are in packs of which less than half is used.

    First the new packs are written, then the lists that lead to them. The old packs are removed
    last. After a kill in between, `unused_packs` has the new packs, and the old ones are complete.

    Args:
        store: The dataset's store.
        paths: The path of each output in a pack that stays, by its address.
    """
    places = {place: path for name, path in paths.items() if (place := parse_address(name))}
    present = _present(store)
    lengths: dict[str, int | None] = {}
    now = {p: p if p.pack in present else store.packed.find(p, lengths) for p in places}
    used: Counter[str] = Counter()
    for at in now.values():
        if at:
            used[at.pack] += at.end - at.offset + BLOCK
    packs = sorted(used)
    sizes = zip(packs, store.sizes(packs), strict=True)
    sparse = {pack for pack, size in sizes if used[pack] < _LEAST_USED * (size or 0)}
    moving = {p: at for p, at in now.items() if at and at.pack in sparse}
    new = _copy_members(store, {at: places[p] for p, at in moving.items()})
    for pack in sorted({p.pack for p in moving}):
        moved = {p.offset: new.get(at, at) for p, at in now.items() if at and p.pack == pack}
        store.write(list_of_moved(pack), encode_moved(moved))
    in_threads(store.delete, sorted(sparse), store.threads)


def _copy_members(store: Store, paths: Mapping[Address, str]) -> dict[Address, Address]:
    """Copy files into new packs. Return where they are now."""
    new: dict[Address, Address] = {}
    data = bytearray()
    name = _new_name()
    for place in sorted(paths):
        header, member = encode_member(paths[place], store.packed.read(place))
        new[place] = Address(name, len(data) + header, place.size)
        data += member
        if len(data) >= _JOINED_BYTES:
            store.write(name, bytes(data))
            data, name = bytearray(), _new_name()
    if data:
        store.write(name, bytes(data))
    return new


def _new_name() -> str:
    return f"{PACKS}/joined-{uuid.uuid4().hex[:12]}.tar"


def _present(store: Store) -> set[str]:
    return {f"{PACKS}/{name}" for name in store.names(PACKS)}
