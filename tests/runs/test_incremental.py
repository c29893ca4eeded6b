"""Test that a second run executes only changed inputs, and gives the result of a full run."""

import errno
import os
import random
import shutil
from contextlib import ExitStack
from dataclasses import replace

import pandas as pd
import pytest
from harness.comparison import contents
from harness.copying_job import HELPER, STEP, CopyingJob
from harness.jobs import run_job

from batchmill import ManifestError, OptionError, StoreError, open_dataset
from batchmill.core.ledger.lease import Wait, lease
from batchmill.core.manifest.records import listed_manifest
from batchmill.core.options.job_options import RunOptions
from batchmill.core.planning.batching import Cores
from batchmill.core.planning.job import make_job
from batchmill.core.planning.prepare import prepare
from batchmill.core.storage import LocalStore
from batchmill.core.user_step.fingerprint import differences
from batchmill.core.user_step.load import load_step
from batchmill.datasets.maintenance.verify import verify
from batchmill.datasets.publishing.publish import publish_changes
from batchmill.runs.execute import InThisProcess, execute
from batchmill.runs.run import open_run

pytestmark = pytest.mark.slow


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return CopyingJob(tmp_path, 20)


def test_only_changed_inputs_are_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = CopyingJob(tmp_path, 100)
    assert job.run() == 100
    assert job.run() == 0
    assert job.reasons() == {"unchanged": 100}

    job.names.append("one more.txt")
    job.path("one more.txt").write_text("one more")
    job.list()
    assert job.reasons() == {"unchanged": 100, "new": 1}
    assert job.run() == 1

    for name in job.names[:50]:
        os.utime(job.path(name), (1, 1))
    assert job.reasons() == {"unchanged": 101}
    assert job.run() == 0
    # The new times are recorded, so the files are not read again.
    assert len(job.plan().plan.touched) == 0

    job.path("00007.txt").write_text("00008.txt")
    assert job.plan().plan.first("changed", 5) == ["in/00007.txt"]
    assert job.run() == 1
    assert job.output("00007.txt").read_text() == "00008.txt"

    job.output("00003.txt").unlink()
    job.output("00004.txt").write_text("half")
    assert job.plan().plan.first("damaged", 5) == ["in/00003.txt", "in/00004.txt"]
    assert job.run() == 2
    assert job.output("00004.txt").read_text() == "00004.txt"

    job.labels["00001.txt"] = "speech"
    job.list()
    assert job.run() == 0
    table = pd.read_parquet(tmp_path / "out" / "metadata.parquet").set_index("input")
    assert table.loc["in/00001.txt", "label"] == "speech"

    assert job.reasons(params={"times": 2}) == {"changed": 101}
    assert job.plan(params={"times": 2}).step_changes == ["the parameter times changed from 1 to 2"]
    assert job.reasons(force=True) == {"forced": 101}


def test_a_change_of_the_signature_or_of_the_step_is_reported_once():
    before = {"ref": "a:step", "version": None, "params": {"old": "1"}, "code": {}}
    now = before | {"params": {"new": "2"}}
    assert differences(before, now) == [
        "the parameter new was added with the value 2",
        "the parameter old was removed",
    ]
    now = now | {"ref": "b:step"}
    assert differences(before, now) == ["the step changed from a:step to b:step"]


def test_an_edited_step_executes_all_inputs_and_reports_why(job):
    job.run()
    job.edit(step=STEP.format(helper=job.helper).replace("times=1", "times=1, unused=None"))
    assert job.plan().step_changes == [
        "the parameter unused was added with the value null",
        "step changed",
    ]
    assert job.run() == 20
    job.edit(helper=HELPER.replace("len(", "1 + len("))
    assert f"step > {job.helper}.measure changed" in job.plan().step_changes
    assert job.run() == 20
    job.edit(step=STEP.format(helper=job.helper) + "step.version = '2'\n")
    assert "the step's version changed from None to 2" in job.plan().step_changes
    assert job.run() == 20
    assert job.run() == 0


def test_a_remark_and_an_unused_function_execute_nothing(job):
    job.run()
    job.edit(
        step=STEP.format(helper=job.helper).replace("*, times=1):", "*, times=1):\n    'Copy.' #")
        + "# a remark\n",
        helper=HELPER + "def unused(): ...\n",
    )
    assert job.plan().step_changes == []
    assert job.run() == 0


def test_a_file_replaced_by_another_of_the_same_size_and_time_is_executed(job):
    job.run()
    seen = job.path("00003.txt").stat()
    other = job.folder / "other"
    other.write_text("3.txt0000")
    os.utime(other, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    os.replace(other, job.path("00003.txt"))
    assert job.plan().plan.first("changed", 5) == ["in/00003.txt"]
    assert job.run() == 1
    assert job.output("00003.txt").read_text() == "3.txt0000"


def test_a_file_with_other_rights_is_read_once_and_not_executed(job):
    job.run()
    job.path("00003.txt").chmod(0o600)
    assert job.plan().plan.touched.to_pylist() == ["in/00003.txt"]
    assert job.run() == 0
    assert len(job.plan().plan.touched) == 0


def test_batch_size_and_workers_do_not_change_the_dataset(job):
    job.run(batch_size=1, num_workers=1, cores=1)
    assert job.run(batch_size=7, num_workers=2, cores=8) == 0


def test_withdrawn_rows_stay_until_they_are_pruned(job):
    job.run()
    gone = job.output("00002.txt")
    job.names.remove("00002.txt")
    job.list()
    assert job.plan().plan.withdrawn.to_pylist() == ["in/00002.txt"]
    assert job.run() == 0
    assert gone.exists()
    assert job.run(prune=True) == 0
    assert gone.exists(), "the earlier version stays"
    assert job.run(keep_versions=0) == 0
    assert not gone.parent.exists()
    assert "in/00002.txt" not in set(pd.read_parquet(job.dataset / "metadata.parquet")["input"])
    assert job.reasons() == {"unchanged": 19}
    assert list(verify(job.ledger)) == []
    job.names.append("00002.txt")
    job.list()
    assert job.reasons() == {"unchanged": 19, "new": 1}


@pytest.fixture
def over_a_folder(job):
    """Return a function that prepares a job over the folder of inputs, or over a list."""

    def over(listed=None):
        place = str(job.folder / "in") if listed is None else listed_manifest(job.dataset)
        made = make_job(manifest=place, step=f"{job.module}:step", output=str(job.dataset))
        return prepare(made, listed)

    return over


def arrive_and_run(job, name="late.txt"):
    """Add a new input to the folder, and process it with another run."""
    job.path(name).write_text(name)
    return run_job(job.folder / "in", f"{job.module}:step", job.dataset)


def prune(prepared):
    """Start a run that executes no input, prune the dataset, and return the plan."""
    options = replace(prepared.job.options, run=RunOptions(prune=True))
    prepared = replace(prepared, job=replace(prepared.job, options=options))
    with open_run(prepared) as run:
        plan = run.prepared.plan
        run.divide(Cores(total=1, node=1))
        run.finalize()
        publish_changes(run.prepared, run.number)
    return plan


def test_results_of_a_run_during_the_wait_are_not_pruned(job, over_a_folder):
    arrive_and_run(job)
    prepared = over_a_folder()
    arrive_and_run(job, "later.txt")
    job.path("00003.txt").unlink()
    plan = prune(prepared)
    assert plan.withdrawn.to_pylist() == ["00003.txt"]
    assert plan.counts["unchanged"] == 21
    table = pd.read_parquet(job.dataset / "metadata.parquet").set_index("input")
    assert (job.dataset / table.loc["later.txt", "output"]).read_text() == "later.txt"
    assert "00003.txt" not in table.index


def test_records_written_during_planning_are_not_pruned(job, over_a_folder, monkeypatch):
    arrive_and_run(job)

    def load(*args, **options):
        monkeypatch.undo()
        monkeypatch.chdir(job.folder)
        arrive_and_run(job, "later.txt")
        return load_step(*args, **options)

    monkeypatch.setattr("batchmill.core.planning.prepare.load_given_step", load)
    plan = prune(over_a_folder())
    assert (len(plan.withdrawn), plan.counts["unchanged"]) == (0, 22)


def test_a_list_does_not_change_while_its_run_waits(job, over_a_folder):
    names = [str(job.path(name)) for name in job.names]
    prepared, another = over_a_folder(names), over_a_folder(names[:3])
    execute(over_a_folder(names[:9]), InThisProcess())
    execute(over_a_folder(names), InThisProcess())
    assert prune(prepared).counts["unchanged"] == 20
    assert len(prune(another).withdrawn) == 17


def test_an_unreadable_manifest_ends_the_waiting_run(job, over_a_folder):
    arrive_and_run(job)
    prepared = over_a_folder()
    arrive_and_run(job, "later.txt")
    shutil.move(job.folder / "in", job.folder / "away")
    with pytest.raises(ManifestError, match="no such file or folder"):
        prune(prepared)
    assert len(job.ledger.records(["input"])) == 22


def test_force_executes_all_inputs(job):
    job.run()
    before = contents(job.dataset)
    assert job.run(force=True) == 20
    assert contents(job.dataset) == before


def test_a_missing_input_has_the_run_of_the_result_that_stays(job):
    job.run()
    job.path("00009.txt").unlink()
    for _ in range(2):
        job.run()
        failures = pd.read_csv(job.dataset / "failures.csv")
        assert failures[["outcome", "result_run"]].to_numpy().tolist() == [["missing", 1]]


def test_the_last_good_result_of_a_failed_input_stays(job):
    job.run()
    before = job.output("00009.txt")
    job.path("00009.txt").write_bytes(b"\xff")
    for content in (b"\xfe", b"\xfd"):
        job.run(keep_versions=0)
        assert job.summary.outcomes == {"ok": 19, "failed": 1}
        assert (job.output("00009.txt"), before.read_text()) == (before, "00009.txt")
        table = pd.read_parquet(job.dataset / "metadata.parquet").set_index("input")
        assert table.index[table["stale"]].tolist() == ["in/00009.txt"]
        assert pd.read_csv(job.dataset / "failures.csv")["result_run"].tolist() == [1]
        assert list(verify(job.ledger, hash_files=True)) == []
        job.path("00009.txt").write_bytes(content)
    job.path("00009.txt").write_text("good")
    assert job.run(keep_versions=0) == 1
    assert job.output("00009.txt").read_text() == "good"
    assert not before.exists()
    assert "stale" not in pd.read_parquet(job.dataset / "metadata.parquet")


def test_a_mistake_in_the_step_removes_no_good_result(job):
    job.run()
    good = {path: path.read_text() for path in outputs_below(job.dataset)}
    job.edit(helper="def measure(source):\n    return undefined\n")
    job.run(keep_versions=0)
    assert job.summary.outcomes == {"failed": 20}
    assert {path: path.read_text() for path in outputs_below(job.dataset)} == good
    samples = open_dataset(job.dataset, columns=["stale"])
    assert [sample.stale for sample in samples] == [True] * 20
    with pytest.raises(OptionError, match="no sample to open"):
        open_dataset(job.dataset, stale=False)


def test_results_of_failed_inputs_are_removed_on_request(job):
    job.run()
    job.path("00009.txt").write_bytes(b"\xff")
    job.run()
    assert job.run(prune_failed=True, keep_versions=0) == 0
    assert job.summary.outcomes == {"ok": 19, "failed": 1}
    assert len(pd.read_parquet(job.dataset / "metadata.parquet")) == 19
    assert len(outputs_below(job.dataset)) == 19
    assert list(verify(job.ledger, hash_files=True)) == []
    assert job.reasons() == {"unchanged": 19, "quarantined": 1}


def test_a_file_changed_after_planning_is_recorded_as_it_was_read(job):
    def change():
        job.path("00005.txt").write_text("later")

    job.run(before=change)
    assert job.output("00005.txt").read_text() == "later"
    assert job.run() == 0


class Releases(Wait):
    """Adds an input and ends the other run, at the first poll."""

    def __init__(self, job, other):
        self.job, self.other, self.calls = job, other, []

    def begin(self):
        self.calls.append("begin")
        self.job.names.append("new.txt")
        self.job.path("new.txt").write_text("new")
        self.job.list()
        self.other.close()

    def end(self):
        self.calls.append("end")


def test_a_run_that_waited_reads_the_manifest_again(job):
    job.run()
    prepared = prepare(job.job())
    with ExitStack() as other:
        other.enter_context(lease(job.ledger))  # It changes nothing.
        wait = Releases(job, other)
        with open_run(prepared, wait=wait) as run:
            assert run.prepared.plan.counts["new"] == 1
    assert wait.calls == ["begin", "end"]


def test_a_run_after_a_kill_that_only_removed_withdrawn_inputs(job):
    job.run()
    job.names.pop()
    job.list()
    # It ends without a clean end, like a kill.
    with open_run(prepare(job.job(prune=True))) as killed:
        killed.divide(Cores(total=1, node=1))
        killed.finalize()
    assert job.run() == 0
    assert len(pd.read_parquet(job.dataset / "metadata.parquet")) == 19


@pytest.mark.parametrize(
    ("before", "after"),
    [(["a", "b"], ["a"]), (["x"], ["x/y"]), (["x/y", "z"], ["x"]), (["a"], []), (["a/b/c"], ["d"])],
)
def test_files_that_a_step_no_longer_writes_are_removed(job, before, after):
    def writing(names):
        return STEP.format(helper=job.helper) + (
            f"def step(source, out):\n    for name in {names}:\n"
            "        (out / name).parent.mkdir(parents=True, exist_ok=True)\n"
            f"        (out / name).write_text('{len(names)}')\n"
            "        yield {'output': name}\n"
        )

    for names in (before, after):
        job.edit(step=writing(names))
        job.run(keep_versions=0)
    found = {str(path.relative_to(job.dataset / "files")) for path in outputs_below(job.dataset)}
    assert {name.partition("/")[2] for name in found} == set(after)
    assert list(verify(job.ledger, hash_files=True)) == []


def outputs_below(dataset):
    return [path for path in (dataset / "files").rglob("*") if path.is_file()]


def test_failures_in_a_full_scratch_folder_are_not_recorded(job, monkeypatch):
    """Only the folder that steps write to is full."""
    job.path("00003.txt").write_bytes(b"\xff")
    with monkeypatch.context() as full:
        full.setattr("batchmill.runs.inputs.failed_outcomes.has_room", lambda *_: False)
        with pytest.raises(StoreError, match="Free some space"):
            job.run()
    assert "in/00003.txt" not in job.ledger.records(["input"])["input"].to_pylist()
    job.run()
    assert job.summary.outcomes == {"ok": 19, "failed": 1}


def test_failures_on_a_full_disk_are_not_recorded(job, monkeypatch):
    """A failure on a full disk gets no outcome, so the next run retries the input."""
    room = job.folder / "room"
    monkeypatch.setattr(LocalStore, "is_full", property(lambda store: not room.exists()))
    job.path("00003.txt").write_bytes(b"\xff")
    with pytest.raises(StoreError, match="Free some space"):
        job.run()
    room.touch()
    job.path("00003.txt").write_text("fixed")
    job.run()
    assert job.summary.outcomes == {"ok": 20}
    assert list(verify(job.ledger)) == []


def test_occasional_store_failures_lose_no_results(job, monkeypatch):
    chance = random.Random(0)
    rename, failures = os.rename, []

    def flaky(path, target, **folders):
        if chance.random() < 0.1:
            failures.append(path)
            raise OSError(errno.EIO, "Input/output error")
        return rename(path, target, **folders)

    monkeypatch.setattr("batchmill.core.storage.retries.retry_local.pauses", (0.0,) * 8)
    monkeypatch.setattr(os, "rename", flaky)
    for number in range(6):
        job.path("00000.txt").write_text(f"version {number}")
        job.run(batch_size=1)
    assert failures
    assert job.output("00000.txt").read_text() == "version 5"
    assert job.run() == 0
    assert list(verify(job.ledger, hash_files=True)) == []


class StopAfterFive(list):
    """A list that interrupts the run when it has five outcomes."""

    def append(self, outcome):
        super().append(outcome)
        if len(self) == 5:
            raise KeyboardInterrupt


def test_a_forced_run_can_be_resumed_and_a_later_one_starts_again(job):
    assert job.run() == 20
    with pytest.raises(KeyboardInterrupt):
        job.run(force=True, batch_size=1, num_workers=1, seen=StopAfterFive())
    done = len(job.ledger.outcomes(2))
    assert 5 <= done < 20
    assert job.run(force=True) == 20 - done
    assert job.run() == 0
    assert job.run(force=True) == 20


def test_a_run_reads_its_state_once(job, monkeypatch):
    job.run()
    job.path("00003.txt").write_text("00004.txt")
    names = []

    def noting(real):
        return lambda *own: (names.append(own[1]), real(*own))[1]

    monkeypatch.setattr(LocalStore, "read", noting(LocalStore.read))
    monkeypatch.setattr(LocalStore, "open", noting(LocalStore.open))  # A mapped file is opened.
    assert job.run() == 1
    assert [name for name in names if name.endswith("-state.parquet")] == [
        ".batchmill/snapshots/000001-state.parquet"
    ]
