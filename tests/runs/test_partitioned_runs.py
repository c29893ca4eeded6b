"""Runs with partitions: the published tables, the recorded assignment, and `verify`."""

import random
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness.comparison import contents
from harness.jobs import job_of, run_job

import batchmill
from batchmill import LedgerError, ManifestError, OptionError
from batchmill.core.ledger.open import open_ledger
from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.partitions.record import last_assignment, write_assignment
from batchmill.core.planning.batching import Cores
from batchmill.core.planning.prepare import prepare
from batchmill.datasets.maintenance.verify import verify
from batchmill.datasets.publishing.publish import publish_changes
from batchmill.datasets.publishing.report import write_report
from batchmill.runs.execute import RunObserver
from batchmill.runs.run import open_run

pytestmark = pytest.mark.slow

STEP = """
def step(source, out):
    (out / "copy").write_text(source.read_text())
    yield {"output": "copy", "part": 1}
    yield {"output": "copy", "part": 2}
def own(source):
    return {"partition": "mine"}
"""
# `verify` finds this while the tables are still those of the first run.
STALE = [("changed", "is of run 1, and older than the ledger. Run the job again")]
# `verify` finds this while the table is not the published one.
CHANGED = ("changed", "differs from the published table. Run the job again")
SHARES = {"partition": "train=0.6,validation=0.2,test=0.2"}
STRATIFIED = SHARES | {"group_by": "who", "stratify": "kind"}


class Job:
    """A folder with two inputs per speaker, and runs over it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows, self.speakers = [], 0
        (folder / "in").mkdir()
        (folder / "dividing.py").write_text(STEP)

    def add(self, count, kind="x"):
        """Add speakers with two inputs each."""
        numbers = range(self.speakers, self.speakers + count)
        self.speakers += count
        for number in numbers:
            for take in (1, 2):
                name = f"in/{number:03d}-{take}"
                (self.folder / name).write_text(name)
                self.rows.append({"input": name, "who": f"speaker {number}", "kind": kind})
        return self

    def run(self, step="dividing:step", **options):
        """Run the job, and return the summary."""
        pd.DataFrame(self.rows).to_csv("m.csv", index=False)
        return run_job("m.csv", step, "out", options=options)

    def prune(self, **options):
        """Run the job, and remove the inputs that the manifest does not list."""
        pd.DataFrame(self.rows).to_csv("m.csv", index=False)
        return run_job("m.csv", "dividing:step", "out", prune=True, options=options)

    def plan(self, step="dividing:step", **options):
        pd.DataFrame(self.rows).to_csv("m.csv", index=False)
        job = job_of("m.csv", step, "out", **options)
        return prepare(job)

    @property
    def table(self):
        return pd.read_parquet("out/metadata.parquet")

    @property
    def by_speaker(self):
        """Each speaker's only partition."""
        pairs = self.table[["who", "partition"]].dropna().drop_duplicates()
        assert pairs["who"].is_unique
        return dict(pairs.itertuples(index=False))

    def rewrite(self, change):
        """Change the published table without batchmill."""
        frame = self.table
        change(frame)
        frame.to_parquet("out/metadata.parquet", index=False)

    @property
    def found(self):
        return [(one.kind, one.message) for one in verify(open_ledger("out"))]


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Job(tmp_path).add(20)


def test_the_table_has_the_partition_of_each_row(job):
    summary = job.run(**SHARES, group_by="who")
    assert list(job.table.columns) == ["input", "output", "partition", "who", "kind", "part"]
    assert set(job.by_speaker.values()) == {"train", "validation", "test"}
    assert pd.read_csv("out/metadata.csv")["partition"].tolist() == job.table["partition"].tolist()
    counts = job.table.drop_duplicates("input")["partition"].value_counts().to_dict()
    assert summary.partitions == counts
    assert summary.as_json()["partitions"] == counts
    assert job.found == []


def test_without_partitions_a_manifest_column_named_partition_is_kept(job):
    for row in job.rows:
        row["partition"] = "any"
    summary = job.run()
    assert list(job.table.columns) == ["input", "output", "who", "kind", "partition", "part"]
    assert set(job.table["partition"]) == {"any"}
    assert "partitions" not in summary.as_json()
    assert job.run(step="dividing:own", replace_step=True).outcomes == {"ok": 40}


def test_a_partition_in_the_manifest_applies_to_the_whole_group(job):
    job.rows[0]["partition"] = "held"
    with pytest.raises(ManifestError, match="line 2: partition 'held' is not in --partition"):
        job.plan(**SHARES, group_by="who")
    job.run(partition=SHARES["partition"] + ",held=0", group_by="who")
    assert list(job.table.columns) == ["input", "output", "who", "kind", "partition", "part"]
    assert job.by_speaker["speaker 0"] == "held"
    assert list(job.by_speaker.values()).count("held") == 1
    assert job.found == []


def test_new_shares_execute_nothing_and_update_the_table(job):
    job.run()
    assert "partition" not in job.table.columns
    before = job.table
    seen = []
    for options in (SHARES, {"partition": "a=0.5,b=0.5"}, {"partition": "a=0.5,b=0.5", "seed": 1}):
        assert job.plan(**options).plan.counts["unchanged"] == 40
        assert job.run(**options).executed == 0
        assert job.table.drop(columns="partition").equals(before)
        assert job.found == []
        seen.append(job.table["partition"].tolist())
    assert len(set(map(tuple, seen))) == 3
    assert job.run().executed == 0
    assert job.table.equals(before)
    assert job.found == []


def test_the_report_is_stale_after_the_partitions_change(job):
    def is_stale(**options):
        with open_run(job.plan(**options)) as run:
            run.divide(Cores(total=1, node=1))
            run.finalize()
            publish_changes(run.prepared, run.number)
            is_stale = run.report_is_stale
            run.end()
            return is_stale

    summary = job.run(**SHARES)
    facts, _ = write_report(open_ledger("out"), summary.run, "out")
    assert facts.summary.partitions == summary.partitions
    assert "<h2>Partitions</h2>" in Path("out/report.html").read_text()
    assert not is_stale(**SHARES)
    assert is_stale(partition="a=0.5,b=0.5")
    assert not is_stale(partition="a=0.5,b=0.5")
    assert is_stale()


def withdraw(job, *names):
    """Remove inputs from the manifest. Their results stay in the ledger."""
    job.rows = [row for row in job.rows if row["input"] not in names]


def recorded():
    """The recorded partition of each input, also of the withdrawn ones."""
    rows = last_assignment(open_ledger("out")).rows
    pairs = zip(rows["input"].to_pylist(), rows["partition"].to_pylist(), strict=True)
    return {name: partition for name, partition in pairs if name is not None}


def partitions(job):
    """Each input's partition. Every row of the table must have one."""
    pairs = job.table[["input", "partition"]].drop_duplicates()
    assert pairs["input"].is_unique
    assert pairs["partition"].notna().all()
    return dict(pairs.itertuples(index=False))


@pytest.mark.parametrize("options", [SHARES, SHARES | {"group_by": "who"}, STRATIFIED])
def test_an_input_that_the_manifest_no_longer_lists_keeps_its_partition(job, options):
    job.run(**options)
    before = partitions(job)
    withdraw(job, "in/003-1", "in/004-1", "in/004-2")
    summary = job.run(**options)
    assert recorded() == before
    listed = {row["input"] for row in job.rows}
    assert partitions(job) == {name: before[name] for name in listed}
    assert sum(summary.partitions.values()) == len(job.rows), "only listed inputs are counted"
    assert job.found == []


@pytest.mark.parametrize("options", [SHARES, SHARES | {"group_by": "who"}, STRATIFIED])
def test_a_partition_is_the_same_in_all_versions(job, options):
    job.run(**options)
    withdraw(job, "in/003-1", "in/004-1", "in/004-2")
    job.add(8)
    job.run(**options)
    (job.folder / "in" / "005-1").write_text("changed")
    job.run(**options)
    found = [batchmill.metadata("out", version=number) for number in (2, 3)]
    tables = [table.set_index("input")["partition"] for table in (*found, job.table)]
    assert [len(table) for table in tables] == [106, 106, 106]
    assert tables[0].equals(tables[1])
    assert recorded().items() >= tables[0].to_dict().items()


@pytest.mark.parametrize("options", [SHARES | {"group_by": "who"}, STRATIFIED])
def test_other_shares_and_seeds_move_withdrawn_inputs_with_their_group(job, options):
    job.run(**options)
    withdraw(job, *(f"in/{number:03d}-1" for number in range(10)), "in/000-2", "in/001-2")
    for change in ({"seed": 1}, {"seed": 2}, {"partition": "train=0.5,test=0.5"}):
        job.run(**options | change)
        assert len(job.by_speaker) == 18, "all inputs of two speakers are withdrawn"
        assert len(recorded()) == 40
        pairs = {(name[:6], partition) for name, partition in recorded().items()}
        assert len(pairs) == 20, "the inputs of a speaker are in one partition"
        assert job.found == []


def test_a_partition_by_hand_stays_while_its_group_is_withdrawn(job):
    by_hand = {"in/000-1": "test", "in/001-1": "test", "in/002-1": "train"}
    for row in job.rows:
        row["partition"] = by_hand.get(row["input"])
    options = {"partition": "train=0.5,test=0.5,other=0", "group_by": "who"}
    job.run(**options)
    withdraw(job, "in/000-1", "in/000-2", "in/001-1")
    for row in job.rows:
        if row["who"] == "speaker 1":
            row["partition"] = "other"
    job.run(**options | {"seed": 3})
    assert {recorded()["in/000-1"], recorded()["in/000-2"]} == {"test"}
    assert job.by_speaker["speaker 1"] == "other", "the listed inputs decide for the group"
    assert job.found == []
    job.run(partition="train=1,other=0", group_by="who")
    assert recorded()["in/000-1"] == "train", "the partition 'test' does not exist any longer"
    assert job.found == []


def test_inputs_that_were_withdrawn_before_the_first_partitions_join_their_group(job):
    job.run()
    withdraw(job, *(f"in/{number:03d}-1" for number in range(20)))
    job.run(**SHARES, group_by="who")
    assert set(partitions(job).values()) == {"train", "validation", "test"}
    assert len(job.by_speaker) == 20
    assert job.found == []


def test_the_record_has_no_input_that_was_pruned(job):
    job.run(**STRATIFIED)
    withdraw(job, "in/003-1", "in/004-1", "in/004-2")
    job.run(**STRATIFIED)
    job.prune(**STRATIFIED)
    recorded = last_assignment(open_ledger("out"))
    assert recorded.rows["input"].drop_null().to_pylist() == [row["input"] for row in job.rows]
    assert "group:speaker 4" in recorded.by_group(), "it may be listed again"
    assert job.found == []


def test_strata_follow_the_shares_and_speakers_keep_their_partition(job):
    job.add(10, kind="y")
    summary = job.run(**STRATIFIED)
    assert summary.partitions == {"train": 36, "validation": 12, "test": 12}
    before = job.by_speaker
    late = job.rows[:8]
    del job.rows[:8]
    job.add(5).add(5, kind="y")
    assert job.plan(**STRATIFIED).partition_changes == []
    job.run(**STRATIFIED)
    assert all(job.by_speaker.get(who, where) == where for who, where in before.items())
    # Speakers that were removed and added again also keep their partition.
    job.rows[:0] = late
    job.run(**STRATIFIED)
    assert before.items() <= job.by_speaker.items()
    kinds = job.table.drop_duplicates("who").groupby("kind")["partition"].value_counts()
    assert kinds["y"].to_dict() == {"train": 9, "validation": 3, "test": 3}
    assert job.found == []


def test_new_settings_are_reported_and_assign_all_groups_again(job):
    job.run(**STRATIFIED)
    before = job.by_speaker
    assert job.plan(**STRATIFIED | {"seed": 1}).partition_changes == ["--seed was 0, and is 1"]
    other = STRATIFIED | {"partition": "test=0.2,train=0.6,validation=0.2", "stratify": "who"}
    was, now = SHARES["partition"], other["partition"]
    assert job.plan(**other).partition_changes == [
        f"--partition was {was}, and is {now}",
        "--stratify was kind, and is who",
    ]
    job.run(**STRATIFIED | {"seed": 1})
    assert job.by_speaker != before
    assert job.found == []


def test_a_version_keeps_its_assignment_which_is_written_only_if_it_changes(job):
    names = []
    only_last = SHARES | {"keep_versions": 0}
    for options in (STRATIFIED, STRATIFIED, {}, STRATIFIED, SHARES, SHARES, only_last):
        job.run(**options)
        files = Path("out/.batchmill/snapshots").glob("*-partitions.parquet")
        names.append(sorted(path.name[:6] for path in files))
    assert names == [["000001"]] * 4 + [["000001", "000005"]] * 2 + [["000005"]]


def test_a_run_that_ends_before_its_tables_is_completed_by_the_next(job, tmp_path, monkeypatch):
    class EndedError(Exception):
        pass

    def end(*_):
        raise EndedError

    job.run(**STRATIFIED)
    job.add(10)
    with monkeypatch.context() as patch:
        patch.setattr(RunObserver, "write_tables", end)
        with pytest.raises(EndedError):
            job.run(**STRATIFIED)
    assert len(recorded()) == 40, "the assignment of the run that ended does not count"
    assert job.found == STALE
    job.run(**STRATIFIED)
    assert recorded() == partitions(job)
    assert len(recorded()) == 60
    assert job.found == []

    # The same dataset as without the interruption.
    job.folder = tmp_path
    stopped = contents("out")
    Path("out").rename("stopped")
    rows, job.rows = job.rows, job.rows[:40]
    job.run(**STRATIFIED)
    job.rows = rows
    job.run(**STRATIFIED)
    assert contents("out") == stopped


def test_an_assignment_that_was_never_published_does_not_count(job, monkeypatch):
    job.run(**STRATIFIED)
    before = job.by_speaker
    job.add(3)
    with monkeypatch.context() as patch:
        patch.setattr(RunObserver, "write_tables", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            job.run(**STRATIFIED | {"seed": 1})
    assert job.found == STALE
    assert job.plan(**STRATIFIED).partition_changes == []
    job.run(**STRATIFIED)
    assert before.items() <= job.by_speaker.items()
    assert job.found == []


def test_an_assignment_that_broke_an_expectation_does_not_count(job):
    job.run(**STRATIFIED)
    job.add(5).run(**STRATIFIED)
    before = job.by_speaker
    policy = FailurePolicy(expect=["part > 1"])
    options = STRATIFIED | {"seed": 1}
    run_job("m.csv", "dividing:step", "out", policy=policy, options=options)
    assert job.by_speaker == before
    job.run(**STRATIFIED)
    assert job.by_speaker == before
    assert job.found == []


def test_a_row_with_the_key_partition_is_rejected(job):
    summary = job.run(step="dividing:own", **SHARES)
    assert summary.outcomes == {"failed": 40}
    assert "has the key 'partition', which batchmill fills in itself" in summary.failures[0][1]


def test_existing_rows_with_the_key_partition_are_rejected_before_the_run(job):
    job.run(step="dividing:own")
    message = "--partition: the step returned the key 'partition' for in/000-1"
    with pytest.raises(OptionError, match=message):
        job.plan(step="dividing:own", **SHARES)
    # A different step executes all inputs again.
    assert job.plan(**SHARES, replace_step=True).plan.counts["changed"] == 40
    job.run(**SHARES, replace_step=True)
    assert job.found == []


def other_than(partition):
    return "test" if partition == "train" else "train"


def test_verify_finds_a_group_that_spans_partitions(job):
    job.run(**SHARES, group_by="who")
    where = job.by_speaker["speaker 3"]

    def move(frame):
        frame.loc[frame["input"] == "in/003-2", "partition"] = other_than(where)

    job.rewrite(move)
    both = f"in/003-1 ({where}) and in/003-2 ({other_than(where)})"
    assert job.found == [
        CHANGED,
        ("leak", f"group 'speaker 3' is in several partitions: {both}"),
        ("leak", f"in/003-2 is in {other_than(where)}, but was assigned to {where}"),
    ]
    job.run(**SHARES, group_by="who")
    assert job.found == []


def test_verify_finds_rows_of_one_input_in_two_partitions(job):
    job.run(**SHARES)
    job.rewrite(lambda frame: frame.__setitem__("partition", ["train", "test"] * 40))
    kinds = {message.partition("'")[0] for _, message in job.found}
    assert "input " in kinds
    assert sum(message.startswith("input ") for _, message in job.found) == 40


def test_verify_finds_a_group_in_the_wrong_partition_and_a_missing_column(job):
    job.run(**STRATIFIED)
    where = job.by_speaker["speaker 3"]

    def move(frame):
        frame.loc[frame["who"] == "speaker 3", "partition"] = other_than(where)

    job.rewrite(move)
    assert job.found == [
        CHANGED,
        *(
            ("leak", f"in/003-{take} is in {other_than(where)}, but was assigned to {where}")
            for take in (1, 2)
        ),
    ]
    job.rewrite(lambda frame: frame.pop("partition"))
    assert job.found == [CHANGED, ("leak", "has no column 'partition'")]


def replace_assignment(table):
    """Let the last version have another assignment, with the right hash."""
    ledger = open_ledger("out")
    version, before = ledger.snapshots.last(), last_assignment(ledger)
    assert version
    assert before
    ledger.store.delete(version.assignment["name"])
    file = write_assignment(ledger, version.number, replace(before, rows=table))
    ledger.snapshots.record(replace(version, assignment=file))


def test_a_damaged_assignment_is_reported_in_one_line(job, seed):
    """Any flipped bit is damage."""
    job.run(**STRATIFIED)
    (path,) = Path("out/.batchmill/snapshots").glob("*-partitions.parquet")
    ledger = open_ledger("out")
    expected = last_assignment(ledger).rows
    whole, chance, messages = path.read_bytes(), random.Random(seed), []
    damaged = [whole[:-20], b""]
    for position in chance.sample(range(len(whole)), 300):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << chance.randrange(8)
        damaged.append(bytes(flipped))
    for content in damaged:
        path.write_bytes(content)
        try:
            last_assignment(ledger)
        except LedgerError as error:
            messages.append(str(error))
    line = re.compile(rf"\S*{path}: [^\n]*Move it away[^\n]*")
    assert [text for text in messages if not line.fullmatch(text)] == []
    assert len(messages) == len(damaged)
    path.write_bytes(whole)
    assert last_assignment(ledger).rows == expected


def test_verify_checks_the_record_itself_against_the_hash(job):
    job.rows[0]["partition"] = "test"  # A partition from the manifest need not follow the hash.
    job.run(**SHARES, group_by="who")
    assert job.found == []
    (path,) = Path("out/.batchmill/snapshots").glob("*-partitions.parquet")
    table = pq.read_table(path)
    places = table["partition"].to_pylist()
    places[6:8] = [other_than(places[6])] * 2
    changed = table.set_column(2, "partition", pa.array(places))
    replace_assignment(changed)

    def move(frame):
        frame.loc[frame["who"] == "speaker 3", "partition"] = places[6]

    job.rewrite(move)
    changed, (kind, message) = job.found
    assert (changed, kind) == (CHANGED, "leak")
    assert message.startswith(f"group 'speaker 3' was assigned to {places[6]}, but its hash gives")


def test_verify_warns_about_the_same_content_in_different_partitions(job):
    for name in ("in/004-1", "in/005-1", "in/006-1", "in/007-1"):
        (job.folder / name).write_text("the same")
    job.rows[8]["partition"] = job.rows[10]["partition"] = "train"
    job.rows[12]["partition"] = job.rows[14]["partition"] = "test"
    job.run(**SHARES, group_by="who")
    (found,) = verify(open_ledger("out"))
    assert (found.kind, found.is_warning) == ("duplicate", True)
    assert found.message == "in/004-1 (train) and in/006-1 (test) have the same content"


def test_an_old_table_has_no_leak(job):
    """The run removed an input, but its table broke an expectation and was not published."""
    job.run(**SHARES)
    del job.rows[:2]
    pd.DataFrame(job.rows).to_csv("m.csv", index=False)
    policy = FailurePolicy(expect=["part > 1"])
    run_job("m.csv", "dividing:step", "out", prune=True, policy=policy, options=SHARES)
    assert {kind for kind, _ in job.found} == {"unpublished"}
