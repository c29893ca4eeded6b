"""Maintenance keeps, removes and reports the right files of datasets that no run has written."""

from functools import partial
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchmill import LedgerError, OptionError
from batchmill.core.digests import input_id
from batchmill.core.layout import LEASES, METADATA, PACKS, PARTS, SNAPSHOTS, STAGING, TABLES
from batchmill.core.ledger.json_file import sealed
from batchmill.core.ledger.lease import lease
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.parts import PART_SCHEMA, Origin
from batchmill.core.ledger.snapshots import Snapshot
from batchmill.core.ledger.state import WITHDRAWN
from batchmill.core.options.job_options import JobSettings, PartitionOptions
from batchmill.core.outcome import Outcome, WrittenFile
from batchmill.core.partitions.partitioning import Partitioning, by_hash
from batchmill.core.partitions.record import SCHEMA, Assignment, write_assignment
from batchmill.core.planning.run_spec import RunSpec
from batchmill.core.storage import LocalStore
from batchmill.core.storage.addresses import Address
from batchmill.core.storage.fingerprints import hash_bytes
from batchmill.datasets.maintenance.cleanup import remove_orphans, sweep
from batchmill.datasets.maintenance.input_files import copy_files, input_files
from batchmill.datasets.maintenance.leakage import find_duplicates, find_leaks
from batchmill.datasets.maintenance.merging import with_merged_parts
from batchmill.datasets.maintenance.verify import advice, examine

HALVES = Partitioning(shares={"train": 0.5, "test": 0.5})
HASHED = by_hash(["group:x"], HALVES)[0]
OTHER = "test" if HASHED == "train" else "train"
LEFT = ".x.part-0123456789abcdef0123456789abcdef"
RUN = ".batchmill/runs/000001"
PLAN_FILES = [f"{RUN}/{name}" for name in ("plan.arrow", "plan.json", "summary.json")]
OWN_TABLE = f"{SNAPSHOTS}/000001-table.parquet"


class Dataset:
    """Writes the files of a dataset one by one. Each output contains its own name."""

    def __init__(self, folder):
        self.store = LocalStore(folder)
        self.ledger = Ledger(self.store)
        self.ledger.create()
        self._parts = count()

    def record(self, run, name, *paths, kind="ok", attempts=1, attempt=1, packed=None, **seen):
        """Commit an outcome. `packed` has the addresses of outputs that are in a pack."""
        for path in paths:
            self.store.write(path, path.encode())
        places = dict.fromkeys(paths) | (packed or {})
        outputs = [WrittenFile(p, len(p), hash_bytes(p.encode()), at) for p, at in places.items()]
        more = {"outputs": tuple(outputs), **seen}
        outcome = Outcome(name, input_id(name), kind, attempts, 0.5, 1.0, "host", **more)
        part = f"{run:06d}-{next(self._parts):05d}"
        self.ledger.commit(part, [(outcome, Origin("{}", "step", run, attempt))])

    def pack(self, number, *paths):
        """Write a pack in which each file takes 1,024 bytes. Return the address of each file."""
        name, members = f"{PACKS}/{number}.tar", [path.encode().ljust(512) for path in paths]
        self.store.write(name, b"".join(bytes(512) + member for member in members))
        places = (Address(name, 512 + 1024 * n, len(path)) for n, path in enumerate(paths))
        return {path: place.named(path) for path, place in zip(paths, places, strict=True)}

    def publish(self, run, partitioning=None, *, assigned=(), merge=False, **columns):
        """Record a version: its tables, its state, and the end of its run. Return the state.

        Args:
            run: The number of the run.
            partitioning: The partitions of the run.
            assigned: For each row of its assignment: input, group, partition, and whether the
                manifest names it.
            merge: Merge all parts.
            **columns: The columns of the table. The manifest lists only the inputs in it.
        """
        state = self.ledger.state()
        table = pa.table(columns or {"input": state.names})
        state = state.changed(state.not_of(table["input"]).names, absence=WITHDRAWN)
        if merge:
            state = with_merged_parts(self.ledger, state, run, many=1)
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        data = sink.getvalue().to_pybytes()
        for name in (*TABLES, self.ledger.snapshots.file_name(run, "table")):
            self.store.write(name, data)
        found = {"size": len(data), "content": hash_bytes(data), "rows": len(table)}
        more = {"assignment": self.assign(run, *assigned)} if assigned else {}
        self.snapshot(run, state, run, partitioning, tables=dict.fromkeys(TABLES, found), **more)
        self.end(run, partitioning)
        return state

    def snapshot(self, run, state, shown, partitioning=None, **more):
        """Record a snapshot. `shown` is the number of the version whose tables show it."""
        last = self.ledger.snapshots.last()
        more = {"tables": last.tables if last else {}} | more
        described = {"created": 1.0, "step": "step", "made_of": "", "shown": shown, **more}
        described |= {"settings": settings(run, partitioning), "number": run}
        self.ledger.snapshots.record(
            Snapshot(state=self.ledger.files.write_state(run, state).file, **described)
        )

    def end(self, run, partitioning=None, **summary):
        """Write the plan and the summary of a run."""
        plan = {"settings": settings(run, partitioning), "rows": 0, "streams": []}
        folder = self.ledger.run_folder(run)
        self.store.write(f"{folder}/plan.arrow", b"no rows")
        self.store.write(f"{folder}/plan.json", sealed(plan))
        self.ledger.write_summary(run, summary)

    def assign(self, run, *rows):
        """Write an assignment, and return its file."""
        columns = dict(zip(SCHEMA.names, zip(*rows, strict=True), strict=True))
        assignment = Assignment(partitioning=HALVES, rows=pa.table(columns, SCHEMA))
        return write_assignment(self.ledger, run, assignment)

    def seen(self, number):
        """Return what the state of a version has of each input."""
        state = self.ledger.files.read_state(self.ledger.snapshots.find(number))
        return by_input(state.records(RECORDED))

    def paths(self):
        return {str(path.relative_to(self.store.root)) for path in self.store.root.rglob("*")}


# All that a state has of its inputs.
RECORDED = [*PART_SCHEMA.names, "result_run", "absence"]


def by_input(records):
    return records.sort_by("input").to_pylist()


def settings(run, partitioning):
    """Return the settings of a run, as its plan and its snapshot have them."""
    more: dict[str, Any] = dict.fromkeys(("step", "search", "root", "identity"), "")
    more |= {"counts": {}, "resolved": {}, "params": {}, "batch_size": 1, "num_workers": 1}
    shares = PartitionOptions(partition=partitioning.shares) if partitioning else PartitionOptions()
    return RunSpec(run=run, options=JobSettings(partitions=shares), **more).as_json()


@pytest.fixture
def dataset(tmp_path):
    return Dataset(tmp_path / "out")


@pytest.mark.parametrize("are_merged", [False, True])
@pytest.mark.parametrize("run", [4, 5], ids=["last", "idle"])
@pytest.mark.parametrize(
    ("kept", "stay"), [(0, [1, 4]), (1, [1, 3, 4]), (9, [1, 2, 3, 4]), (None, [1, 2, 3, 4])]
)
def test_the_last_versions_and_those_with_a_name_stay(dataset, kept, stay, run, are_merged):
    dataset.record(1, "b", "files/b.1/x")
    for number in range(1, 5):
        dataset.record(number, "a", f"files/a.{number}/x")
        state = dataset.publish(number, merge=are_merged)
    dataset.ledger.snapshots.keep("first", 1)
    before = {number: dataset.seen(number) for number in stay}
    sweep(dataset.ledger, state, run, kept)
    assert [version.number for version in dataset.ledger.snapshots.versions()] == stay
    assert dataset.store.names("files") == [*(f"a.{number}" for number in stay), "b.1"]
    assert {number: dataset.seen(number) for number in stay} == before


@pytest.mark.parametrize("are_merged", [False, True])
def test_a_part_stays_for_readers_until_the_run_after_the_one_that_dropped_it(dataset, are_merged):
    dataset.record(1, "b")
    sweep(dataset.ledger, dataset.publish(1), 1, 0)
    for run in range(2, 6):
        opened = dataset.ledger.state()
        before = by_input(opened.records(RECORDED))
        parts = dataset.ledger.part_names()
        dataset.record(run, "a")
        dataset.record(run, "c")
        sweep(dataset.ledger, dataset.publish(run, merge=are_merged), run, 0)
        assert by_input(opened.records(RECORDED)) == before
        assert [version.number for version in dataset.ledger.snapshots.versions()] == [run]
        left = {*dataset.ledger.part_names()}
        assert opened.named_parts <= left
        assert left & {*parts} == opened.named_parts, "the others are removed"


@pytest.mark.parametrize("are_merged", [False, True])
def test_files_that_were_replaced_before_they_were_published_are_removed(dataset, are_merged):
    dataset.record(1, "b", "files/b.1/x")
    dataset.record(1, "a", "files/a.0/x")
    for run, kept, stay in ((1, 1, ["a.1"]), (2, None, ["a.1", "a.2"]), (3, 1, ["a.1", "a.3"])):
        dataset.record(run, "a", f"files/a.{run}/x", attempt=2)
        if kept is None:
            state = dataset.ledger.state()
            if are_merged:
                state = with_merged_parts(dataset.ledger, state, run, many=1)
            dataset.snapshot(run, state, 0)
        else:
            state = dataset.publish(run, merge=are_merged)
        sweep(dataset.ledger, state, run, kept)
        assert dataset.store.names("files") == [*stay, "b.1"]


def test_the_files_of_a_removed_input_that_the_last_version_does_not_list_are_removed(dataset):
    for name in "ab":
        dataset.record(1, name, f"files/{name}.1/x")
    dataset.publish(1, input=["a"])
    state = dataset.ledger.state().not_of(pa.array(["b"]))
    dataset.snapshot(2, state, 1)
    sweep(dataset.ledger, state, 2, 1)
    assert dataset.store.names("files") == ["a.1"]


@pytest.mark.parametrize(
    ("kind", "attempts", "left"), [("ok", 1, True), ("ok", 2, False), ("crashed", 1, False)]
)
def test_a_run_removes_the_files_of_its_attempts_that_died(dataset, kind, attempts, left):
    a, b = map(input_id, "ab")
    for name in (a, b):
        dataset.record(1, name[0], f"files/{name}.1/x")
        dataset.store.write(f"files/{name}.dead/x", b"")
    dataset.publish(1)
    made = [f"files/{a}.2/x"] if kind == "ok" else []
    dataset.record(2, "a", *made, kind=kind, attempts=attempts)
    sweep(dataset.ledger, dataset.publish(2), 2, 1)
    stay = [f"{a}.1", *([f"{a}.2"] if made else []), *([f"{a}.dead"] if left else [])]
    assert dataset.store.names("files") == [*stay, f"{b}.1", f"{b}.dead"]


@pytest.mark.parametrize(("kept", "packs"), [(0, 1), (1, 3)])
def test_a_file_in_a_pack_stays_readable_while_a_version_names_it(dataset, kept, packs):
    first = dataset.pack(1, *(f"files/{name}.1/x" for name in "bcda"))
    second = dataset.pack(2, *(f"files/{name}.2/x" for name in "bcd"))
    for run, places in enumerate((first, second), 1):
        for path, address in places.items():
            dataset.record(run, path[6], packed={path: address})
        dataset.publish(run)
    dataset.record(3, "a", "files/a.3/x")
    sweep(dataset.ledger, dataset.publish(3), 3, kept)
    assert "1.tar" not in dataset.store.names(PACKS), "at most a quarter of it is used"
    assert len(dataset.store.names(PACKS)) == packs
    remove_orphans(dataset.ledger)
    stay = second | ({"files/a.1/x": first["files/a.1/x"]} if kept else {})
    for path, address in stay.items():
        assert LocalStore(dataset.store.root).read(address) == path.encode()
    assert len(dataset.store.names(PACKS)) == packs
    assert examine(dataset.ledger, hash_files=True) == []


def test_a_killed_run_leaves_only_recorded_files_and_what_others_may_be_writing(dataset):
    places = dataset.pack(1, *(f"files/{name}.1/x" for name in "abc"))
    # The last file in the pack was recorded first.
    for path, address in reversed(places.items()):
        dataset.record(1, path[6], packed={path: address})
    dataset.record(1, "d", "files/d.1/x")
    whole = dataset.store.read(f"{PACKS}/1.tar")
    dataset.store.write(f"{PACKS}/1.tar", whole + b"incomplete")
    dataset.pack(2, "files/e.1/x")
    other = f"{LEASES}/{LEFT}"
    for name in ("files/e.1/x", "files/d.1/y", f"{STAGING}/1/x", other, LEFT, f".batchmill/{LEFT}"):
        dataset.store.write(name, b"")
    dataset.store.write(f"{PACKS}/{LEFT}", b"a joined pack")
    dataset.publish(1)
    snapshots = dataset.ledger.snapshots
    for name in (snapshots.file_name(7, "table"), snapshots.file_name(7, "state")):
        dataset.store.write(name, b"of a run that was killed")
    before = by_input(dataset.ledger.records(RECORDED))
    remove_orphans(dataset.ledger)
    own = ["000001-state.parquet", "000001-table.parquet", "000001.json"]
    assert dataset.store.names(SNAPSHOTS) == own
    assert by_input(dataset.ledger.records(RECORDED)) == before
    assert dataset.store.read(f"{PACKS}/1.tar") == whole
    assert dataset.store.names(PACKS) == ["1.tar"]
    assert list(dataset.store.files("files")) == ["files/d.1/x"]
    assert list(dataset.store.leftovers()) == [other]
    assert not dataset.store.exists(STAGING)


@pytest.mark.parametrize("are_merged", [False, True])
def test_a_damaged_version_is_named_and_keeps_its_files(dataset, are_merged):
    for number in (1, 2):
        dataset.record(number, "a", f"files/a.{number}/x")
        state = dataset.publish(number, merge=are_merged)
        dataset.ledger.snapshots.keep(f"name-{number}", number)
    description = dataset.store.read(f"{SNAPSHOTS}/000001.json")
    dataset.store.write(f"{SNAPSHOTS}/000001.json", b"x")
    for clean in (partial(sweep, state=state, run=2, kept=0), remove_orphans):
        with pytest.raises(LedgerError, match=r"000001\.json: is damaged.*Move it away"):
            clean(dataset.ledger)
    assert dataset.store.names("files") == ["a.1", "a.2"]
    dataset.store.write(f"{SNAPSHOTS}/000001.json", description)
    assert examine(Ledger(dataset.store), version=1, hash_files=True) == []


@pytest.mark.parametrize("name", ["000001.json", "000001-state.parquet"])
def test_a_damaged_snapshot_is_named_and_without_it_the_parts_have_the_results(dataset, name):
    dataset.record(1, "a", "files/a.1/x")
    dataset.publish(1)
    before = by_input(dataset.ledger.records(RECORDED))
    dataset.store.write(f"{SNAPSHOTS}/{name}", b"x")
    with pytest.raises(LedgerError, match=f"{name}: .*Move it"):
        examine(Ledger(dataset.store))
    for one in dataset.store.names(SNAPSHOTS):
        dataset.store.delete(f"{SNAPSHOTS}/{one}")
    assert by_input(Ledger(dataset.store).records(RECORDED)) == before


def test_a_part_that_was_moved_away_makes_its_inputs_unknown_and_the_tables_old(dataset):
    for name in "ab":
        dataset.record(1, name, f"files/{name}.1/x")
    dataset.publish(1)
    gone = next(one for one in dataset.ledger.part_names() if one.startswith("000001-00000"))
    dataset.store.delete(f"{PARTS}/{gone}")
    assert dataset.ledger.state().names.to_pylist() == ["b"]
    found = [(one.kind, one.path) for one in examine(dataset.ledger)]
    assert ("changed", METADATA) in found


def test_a_run_that_was_killed_between_its_tables_is_reported(dataset):
    dataset.record(1, "a", "files/a.1/x")
    dataset.publish(1)
    dataset.record(2, "b", "files/b.2/x")
    dataset.end(2)
    dataset.store.delete(f"{dataset.ledger.run_folder(2)}/summary.json")
    dataset.store.write(TABLES[-1], b"of run 2")
    found = {one.path: one.message for one in examine(dataset.ledger)}
    assert found == {
        TABLES[-1]: "differs from the published table. Run the job again",
        METADATA: "is of run 1, and older than the ledger. Run the job again",
    }


def test_tables_of_a_first_run_that_was_killed_before_its_snapshot_are_reported(dataset):
    dataset.record(1, "a")
    dataset.publish(1)
    for name in dataset.store.names(SNAPSHOTS):
        dataset.store.delete(f"{SNAPSHOTS}/{name}")
    found = examine(dataset.ledger)
    assert [(one.kind, one.path) for one in found] == [("changed", name) for name in TABLES]
    assert all(one.message.startswith("run 1 was killed before") for one in found)


def test_merged_parts_have_exactly_the_records_that_the_state_refers_to(dataset):
    first = {"a": "ok", "b": "timeout", "c": "ok", "d": "failed"}
    for run, kinds in enumerate((first, {"a": "failed", "d": "ok"}, {"c": "missing"}), 1):
        for name, kind in kinds.items():
            files = [f"files/{name}.{run}/x"] if kind == "ok" else []
            dataset.record(run, name, *files, kind=kind)
    ledger, state = dataset.ledger, dataset.ledger.state()
    before = by_input(state.records(RECORDED))
    assert [one["outcome"] for one in before] == ["failed", "timeout", "ok", "ok"]
    assert [bool(one["outputs"]) for one in before] == [True, False, True, True]
    parts = ledger.part_names()
    assert with_merged_parts(ledger, state, 3, many=6) is state
    assert ledger.part_names() == parts, "the state refers to only 5 of the 7 parts"
    merged = with_merged_parts(ledger, state, 3, many=5)
    assert len(merged.named_parts) == 1
    assert by_input(merged.records(RECORDED)) == before
    assert {*ledger.part_names()} == {*parts} | merged.named_parts, (
        "earlier snapshots need the others"
    )
    records = ledger.read_part(*merged.named_parts, ["input", "outcome", "run"]).to_pylist()
    assert sorted((one["input"], one["outcome"], one["run"]) for one in records) == [
        ("a", "failed", 2),
        ("a", "ok", 1),
        ("b", "timeout", 1),
        ("c", "ok", 1),
        ("d", "ok", 2),
    ]
    dataset.snapshot(3, merged, 0)
    assert by_input(Ledger(dataset.store).records(RECORDED)) == before
    dataset.record(4, "b", "files/b.4/x")
    again = with_merged_parts(ledger, ledger.state(), 4, many=1)
    assert len(again.named_parts) == 2
    assert again.named_parts > merged.named_parts, "a merged part is not merged again"
    other = [one for one in by_input(again.records(RECORDED)) if one["input"] != "b"]
    assert other == [one for one in before if one["input"] != "b"]


GIVEN = [("a", "group:g", "train", True), ("b", "group:g", "train", True)]
WRONG = [("a", "group:x", OTHER, False), ("b", "group:x", OTHER, False)]
TORN = "group 'g' is in several partitions: b (test) and a (train)"


@pytest.mark.parametrize(
    ("published", "assigned", "expected"),
    [
        ({"a": "train", "b": "train"}, GIVEN, []),
        ({"b": "test", "a": "train"}, GIVEN, [TORN, "b is in test, but was assigned to train"]),
        ({"a": "train", "b": None}, GIVEN, ["b is in no partition, but was assigned to train"]),
        ({"z": "test"}, GIVEN, ["z is in test, but was assigned to no partition"]),
        ({"a": HASHED}, [("a", "group:x", HASHED, False)], []),
        ({"a": OTHER}, [("a", "group:x", OTHER, True)], []),
        ({"a": OTHER}, WRONG, [f"group 'x' was assigned to {OTHER}, but its hash gives {HASHED}"]),
    ],
)
def test_each_leak_of_the_published_table_is_reported_once(dataset, published, assigned, expected):
    columns = {"input": [*published] * 2, "partition": [*published.values()] * 2}
    more = {"assigned": [*assigned, (None, "group:removed", OTHER, False)]}
    dataset.publish(1, HALVES, **more, **columns)
    dataset.store.delete(dataset.ledger.snapshots.file_name(1, "partitions"))
    assert "partitions is missing" in str(list(find_leaks(dataset.ledger)))
    dataset.publish(1, HALVES, **more, **columns)
    assert list(find_leaks(dataset.ledger)) == expected
    assert [(one.kind, one.message) for one in examine(dataset.ledger)] == [
        ("leak", message) for message in expected
    ]
    dataset.store.write(METADATA, b"damaged")
    assert "cannot be read: " in str(list(find_leaks(dataset.ledger)))
    dataset.store.delete(METADATA)
    assert list(find_leaks(dataset.ledger)) == [], "verify reports that the table is missing"
    dataset.publish(1, HALVES, **more)
    assert list(find_leaks(dataset.ledger)) == ["has no column 'partition'"]
    dataset.publish(1)
    assert list(find_leaks(dataset.ledger)) == [], "the run had no partitions"


def test_only_listed_inputs_with_the_same_known_content_are_duplicates(dataset):
    rows = [
        ("withdrawn", "train", 1, "3"),
        *(("d", "test", 1, "1"), ("c", "test", 1, "1"), ("b", "train", 1, "1")),
        *(("empty", "train", 0, "2"), ("also empty", "test", 0, "2")),
        *(("unread", "train", 1, ""), ("also unread", "test", 1, ""), ("alone", "test", 1, "3")),
    ]
    for name, _, size, content in rows:
        dataset.record(1, name, size=size, content=content)
    assigned = [(name, f"input:{name}", place, True) for name, place, *_ in rows]
    listed = rows[1:]
    columns = {"input": [row[0] for row in listed], "partition": [row[1] for row in listed]}
    dataset.publish(1, HALVES, assigned=assigned, **columns)
    message = "b (train) and c (test) have the same content"
    assert list(find_duplicates(dataset.ledger)) == [message]
    assert [(one.kind, one.is_warning) for one in examine(dataset.ledger)] == [("duplicate", True)]


def write(*names, data=b"x"):
    return lambda dataset: [dataset.store.write(name, data) for name in names]


def run_again(dataset, **summary):
    """Run again, and publish nothing. Without a summary, the run was killed."""
    dataset.record(2, "b")
    if summary:
        dataset.snapshot(2, dataset.ledger.state(), 0)
    dataset.end(2, **summary)


OUTPUT = "files/a.1/x"
STRAYS = ["notes", ".batchmill/odd", "packs/x", "files/a.1/b", "files/s"]


@pytest.mark.parametrize(
    ("change", "kind", "paths", "causes"),
    [
        (lambda dataset: None, "", [], []),
        (lambda dataset: dataset.store.delete(METADATA), "missing", [METADATA], []),
        (lambda dataset: dataset.store.remove(RUN), "missing", [RUN], []),
        (lambda dataset: dataset.store.delete(OUTPUT), "missing", [OUTPUT], []),
        (lambda dataset: run_again(dataset, unpublished="x"), "unpublished", [METADATA], []),
        (run_again, "changed", [METADATA], []),
        (write("failures.csv"), "changed", ["failures.csv"], []),
        (write(METADATA), "changed", [METADATA], []),
        (write(OWN_TABLE), "changed", [OWN_TABLE], []),
        (lambda dataset: dataset.store.delete(OWN_TABLE), "missing", [OWN_TABLE], []),
        (write(OUTPUT), "changed", [OUTPUT], []),
        (write(OUTPUT, data=b"longer than before"), "changed", [OUTPUT], []),
        (write(OUTPUT, data=b"other bytes"), "changed", [OUTPUT], []),
        *((write(name), "changed", [name], PLAN_FILES) for name in PLAN_FILES[1:]),
        (write("files/s/x/y", "files/s/z", *STRAYS[:4]), "unreferenced", STRAYS, STRAYS),
    ],
)
def test_a_difference_is_reported_once_and_a_repair_removes_only_its_cause(
    dataset, change, kind, paths, causes
):
    dataset.record(1, "a", OUTPUT)
    dataset.publish(1)
    change(dataset)
    before = dataset.paths()
    found = examine(dataset.ledger, hash_files=True)
    assert [(one.kind, one.path) for one in found] == [(kind, path) for path in paths]
    has_same_size = paths == [OUTPUT] and [*dataset.store.sizes(paths)] == [len(OUTPUT)]
    assert examine(dataset.ledger) == ([] if has_same_size else found)
    text = advice("out", found, repaired=False) if found else ""
    assert ("--repair" in text) == (bool(causes) or paths == [OUTPUT])
    assert ("Run the job again" in text) == (kind in ("missing", "changed"))
    assert examine(dataset.ledger, hash_files=True, repair=True) == found
    gone = {name for name in before if f"{name}/".startswith(tuple(causes))}
    assert before - dataset.paths() == gone
    assert list(dataset.ledger.released()) == (["a"] if paths == [OUTPUT] else [])


def test_an_output_of_a_withdrawn_input_cannot_be_made_again(dataset):
    for name in "abc":
        dataset.record(1, name, f"files/{name}.1/x")
    dataset.publish(1, input=["c"])
    dataset.store.delete("files/a.1/x")
    dataset.store.write("files/b.1/x", b"longer than before")
    found = examine(dataset.ledger, repair=True)
    assert [(one.kind, one.input) for one in found] == [("withdrawn", "a"), ("withdrawn", "b")]
    assert found[0].message == "is missing; the manifest does not list its input"
    assert dataset.ledger.released() == {}
    for repaired in (False, True):
        text = advice("out", found, repaired=repaired)
        assert text == "To remove the results of withdrawn inputs, run the job with --prune."
    dataset.store.delete("files/c.1/x")
    found = examine(dataset.ledger, repair=True)
    assert [*dataset.ledger.released()] == ["c"]
    assert "Run the job again to rebuild" in advice("out", found, repaired=True)


def test_a_dataset_without_runs_has_no_differences_and_one_in_use_is_not_examined(dataset):
    assert examine(dataset.ledger) == []
    with lease(Ledger(dataset.store)), pytest.raises(LedgerError, match="another run is using it"):
        examine(dataset.ledger)


def test_a_version_is_compared_with_its_own_table_and_the_inputs_in_it(dataset):
    for name in "abc":
        dataset.record(1, name, f"files/{name}.1/x")
    dataset.publish(1, input=["a", "b"])
    dataset.record(2, "a", "files/a.2/x")
    for name in ("a.2", "b.1", "c.1"):
        dataset.store.delete(f"files/{name}/x")

    def found():
        return [(one.kind, one.path) for one in examine(dataset.ledger, version=1)]

    table, lost = OWN_TABLE, ("missing", "files/b.1/x")
    assert found() == [lost], "run 2 wrote a again, and the table of run 1 has no c"
    dataset.store.write(table, b"damaged")
    assert found() == [("changed", table), lost]
    dataset.store.delete(table)
    assert found() == [("missing", table), lost]
    with pytest.raises(OptionError, match="cannot be combined"):
        examine(dataset.ledger, version=1, repair=True)


def test_files_are_found_in_each_version_and_copies_replace_nothing(dataset, tmp_path):
    path, copied = "files/a.1/sub/y", tmp_path / "copies/sub/y"
    dataset.record(1, "a", packed=dataset.pack(1, path, "files/a.1/sub/z"))
    dataset.publish(1)
    dataset.record(2, "a", "files/a.2/x")
    assert input_files(dataset.ledger, "a") == [("x", "files/a.2/x", 11)]
    found = input_files(dataset.ledger, "a", 1)
    assert found[0] == ("sub/y", "packs/1.tar/512-15/y", 15)
    assert input_files(dataset.ledger, path, 1) == found[:1]
    with pytest.raises(OptionError, match="no such input or output"):
        input_files(dataset.ledger, path)
    copy_files(dataset.ledger, found, tmp_path / "copies")
    assert copied.read_text() == path
    assert copied.with_name("z").exists()
    copied.write_text("mine")
    for folder, message in (("copies", "exists already"), ("copies/sub/y/z", "Not a directory")):
        with pytest.raises(OptionError, match=f"sub/y: {message}"):
            copy_files(dataset.ledger, found, tmp_path / folder)
    assert copied.read_text() == "mine"
    with pytest.raises(OptionError, match=f"{copied}: exists already"):
        copy_files(dataset.ledger, input_files(dataset.ledger, "a"), copied)
