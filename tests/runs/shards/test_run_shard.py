"""Runs whole jobs in this process, with a real DataLoader."""

import os
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from harness import gated
from harness.comparison import AFTER_A_RUN
from harness.jobs import job_of, run_job
from harness.live import ROOT, STEP_MODULES, wait_for

from batchmill import LedgerError, StepError
from batchmill.core.ledger import committer
from batchmill.core.ledger.lease import check_free, holder, lease
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.parts import Origin
from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.options.job_options import ExecutionOptions, JobSettings
from batchmill.core.outcome import Outcome
from batchmill.core.planning.batching import Cores, plan_shards
from batchmill.core.planning.job import make_job
from batchmill.core.planning.plan_file import PlanFile
from batchmill.core.planning.prepare import prepare
from batchmill.core.planning.run_spec import write_run_plan
from batchmill.core.storage import LocalStore
from batchmill.datasets.publishing.run_message import failure_message
from batchmill.runs.execute import InThisProcess, ShardsEnd, execute
from batchmill.runs.inputs import read_input
from batchmill.runs.progress import RunWatcher
from batchmill.runs.run import open_run
from batchmill.runs.shards.run_shard import run_shard
from batchmill.runs.shards.shard import ask_to_split, split, unfinished
from batchmill.runs.workers import watchdog
from batchmill.runs.workers.isolated_executor import IsolatedExecutor


@pytest.fixture(autouse=True)
def _steps_in_the_working_directory(monkeypatch):
    monkeypatch.chdir(STEP_MODULES)


PARTS = {
    "a.txt": '["sim", "imp", "mpl", "ple"]',
    "b.txt": '["sca", "cal", "ale", "lea", "eab", "abl", "ble"]',
    "c.txt": '["pre", "rep", "epr", "pro", "roc", "oce", "ces", "ess", "ssi", "sin", "ing"]',
    "d.txt": '["pyt", "yto", "tor", "orc", "rch"]',
}


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 100])
def test_the_tutorials_class_gives_the_same_rows_for_every_batch_size(
    words, tmp_path, monkeypatch, batch_size, num_workers
):
    monkeypatch.chdir(ROOT / "examples" / "words")
    summary = run_job(
        words / "manifest.csv",
        "splitter:WordSplitter",
        tmp_path / "out",
        batch_size=batch_size,
        num_workers=num_workers,
        num_chars=3,
        overlap=2,
    )
    assert summary.accepted(FailurePolicy(max_failures="0"))
    table = pd.read_parquet(tmp_path / "out" / "metadata.parquet")
    assert dict(zip(table["input"], table["value"], strict=True)) == PARTS


@pytest.mark.slow
def test_the_tables_do_not_depend_on_batches_workers_or_shards(words, tmp_path):
    for number in range(60):
        (words / f"{number}.txt").write_text("x" * number)
    contents = set()
    divisions = [(1, 0, 1), (7, 2, 1), (100, 1, 8), (3, 1, 16)]
    for number, (batch_size, num_workers, cores) in enumerate(divisions):
        output = tmp_path / str(number)
        summary = run_job(
            words,
            "steps_under_test:copy",
            output,
            batch_size=batch_size,
            num_workers=num_workers,
            cores=cores,
            times=2,
        )
        assert summary.outcomes == {"ok": 65}
        contents.add(
            ((output / "metadata.csv").read_bytes(), (output / "metadata.parquet").read_bytes())
        )
    assert len(contents) == 1


def test_an_input_that_fails_does_not_affect_other_inputs(words, tmp_path):
    seen = []
    summary = run_job(
        words / "manifest.csv", "steps_under_test:fails_on_b", tmp_path / "out", seen=seen
    )
    assert {outcome.input: outcome.kind for outcome in seen} == {
        "a.txt": "ok",
        "b.txt": "failed",
        "c.txt": "ok",
        "d.txt": "ok",
    }
    assert summary.outcomes == {"ok": 3, "failed": 1}
    assert not summary.accepted(FailurePolicy(max_failures="0"))
    assert summary.accepted(FailurePolicy(max_failures="1"))
    assert summary.failures == (("b.txt", "failed: ValueError: bad header"),)
    message = failure_message(summary, "out")
    assert "4 inputs: 3 ok, 1 failed" in message
    assert "b.txt: failed: ValueError: bad header" in message
    assert "Failed" not in failure_message(summary, "out", FailurePolicy(max_failures="1"))
    assert failure_message(summary, "out", FailurePolicy()).splitlines()[-5:] == [
        "Failed: 1 input is not ok, and 0 may fail (--max-failures).",
        "  After a fix of a file: the same command. It executes the files that have changed.",
        "  After a fix of the step: the same command. It executes all inputs.",
        "    To keep 3 ok results if those of a random sample stay equal, add --verify-change 300.",
        "  After a passing fault: batchmill retry out, and then the same command.",
    ]
    failures = pd.read_csv(tmp_path / "out" / "failures.csv")
    assert "in fails_on_b" in failures["traceback"][0]


def test_an_input_without_a_file_is_missing_and_not_executed(words, tmp_path):
    (words / "c.txt").unlink()
    summary = run_job(words / "manifest.csv", "steps_under_test:length", tmp_path / "out")
    assert summary.outcomes == {"ok": 3, "missing": 1}
    assert summary.executed == 3


def test_a_file_whose_name_is_not_utf8_costs_only_one_input(words, tmp_path):
    bad = os.fsencode(words) + b"/caf\xe9.txt"
    with open(bad, "wb"):
        pass
    out = tmp_path / "out"
    summary = run_job(words, "steps_under_test:length", out, options={"pattern": "*.txt"})
    assert summary.outcomes == {"ok": 4, "missing": 1}
    failures = pd.read_csv(out / "failures.csv")
    assert failures["input"].tolist() == ["caf\\xe9.txt"]
    assert "the file's name is not UTF-8. Rename the file" in failures["message"][0]
    os.rename(bad, words / "café.txt")
    summary = run_job(words, "steps_under_test:length", out, options={"pattern": "*.txt"})
    assert (summary.executed, summary.counts["withdrawn"]) == (1, 1)


def test_a_second_run_executes_only_new_and_changed_inputs(words, tmp_path):
    out = tmp_path / "out"
    manifest = words / "manifest.csv"
    run_job(manifest, "steps_under_test:fails_on_b", out)
    summary = run_job(manifest, "steps_under_test:fails_on_b", out)
    assert (summary.executed, summary.counts["quarantined"]) == (0, 1)
    assert summary.outcomes == {"ok": 3, "failed": 1}
    assert not summary.accepted(FailurePolicy(max_failures="0"))
    assert "batchmill retry" in failure_message(summary, "out")
    (words / "e.txt").write_text("new")
    with open(manifest, "a") as file:
        file.write("e.txt\n")
    (words / "a.txt").write_text("longer than before")
    summary = run_job(manifest, "steps_under_test:fails_on_b", out)
    assert summary.executed == 2
    assert summary.outcomes == {"ok": 4, "failed": 1}
    table = pd.read_parquet(out / "metadata.parquet")
    assert table["input"].tolist() == ["a.txt", "c.txt", "d.txt", "e.txt"]


@pytest.mark.slow
def test_a_failed_input_runs_again_if_it_changes_or_a_retry_is_requested(words, tmp_path):
    out = tmp_path / "out"
    run_job(words, "steps_under_test:fails_on_b", out)
    Ledger(LocalStore(out)).release(["b.txt"])
    summary = run_job(words, "steps_under_test:fails_on_b", out)
    assert (summary.executed, summary.counts["retry"]) == (1, 1)
    summary = run_job(words, "steps_under_test:fails_on_b", out)
    assert summary.executed == 0
    (words / "b.txt").write_text("changed")
    summary = run_job(words, "steps_under_test:fails_on_b", out)
    assert (summary.executed, summary.counts["changed"]) == (1, 1)


def test_a_second_run_with_nothing_to_do_changes_nothing(words, tmp_path):
    first = run_job(words / "manifest.csv", "steps_under_test:length", tmp_path / "out")
    before = (tmp_path / "out" / "metadata.parquet").read_bytes()
    second = run_job(words / "manifest.csv", "steps_under_test:length", tmp_path / "out")
    assert (first.executed, second.executed) == (4, 0)
    assert second.outcomes == {"ok": 4}
    assert (tmp_path / "out" / "metadata.parquet").read_bytes() == before


def test_item_i_of_a_list_belongs_to_row_i(words, tmp_path):
    run_job(words / "manifest.csv", "steps_under_test:letters", tmp_path / "out", batch_size=1)
    table = pd.read_parquet(tmp_path / "out" / "metadata.parquet")
    assert table["value"].tolist() == ["one", "two", "three", "four"]
    (words / "manifest.csv").write_text("input\na.txt\n")
    with pytest.raises(StepError, match="has 4 items for 1 inputs"):
        run_job(words / "manifest.csv", "steps_under_test:letters", tmp_path / "other")


def test_labels_come_from_the_manifest(words, tmp_path):
    (words / "labels.csv").write_text("input,label\na.txt,1\nd.txt,2\n")
    run_job(words / "labels.csv", "steps_under_test:Labelled", tmp_path / "out")
    table = pd.read_parquet(tmp_path / "out" / "metadata.parquet")
    assert table[["input", "label", "label_of"]].to_numpy().tolist() == [
        ["a.txt", 1, 1],
        ["d.txt", 2, 2],
    ]
    with pytest.raises(StepError, match="no column 'label'"):
        run_job(words / "manifest.csv", "steps_under_test:Labelled", tmp_path / "other")


def test_a_watcher_follows_the_next_run(words, tmp_path):
    out = tmp_path / "out"
    run_job(words / "manifest.csv", "steps_under_test:length", out)
    watcher = RunWatcher(Ledger(LocalStore(out)))
    assert watcher.poll() is None
    options = {"replace_step": True}
    run_job(words / "manifest.csv", "steps_under_test:fails_on_b", out, options=options)
    progress = watcher.poll()
    assert (progress.total, progress.done, progress.failed) == (4, 4, 1)


def test_progress_counts_an_input_with_two_outcomes_once(words, tmp_path):
    out = tmp_path / "out"
    run_job(words / "manifest.csv", "steps_under_test:fails_on_b", out)
    ledger = Ledger(LocalStore(out))
    watcher = RunWatcher(ledger, 1)
    assert watcher.poll().failed == 1
    again = [Outcome(name, name, "ok", 1, 0.1, 9e9, "here") for name in ("a.txt", "b.txt")]
    ledger.commit("000001-other-00000", [(outcome, Origin("{}", "step", 1)) for outcome in again])
    progress = watcher.poll()
    assert (progress.total, progress.done, progress.failed, progress.failures) == (4, 4, 0, ())


@pytest.mark.parametrize("step", ["length", "fails_on_b"])
def test_no_outcome_is_recorded_after_the_lease_is_lost(words, tmp_path, step):
    out = str(tmp_path / "out")
    job = make_job(
        manifest=str(words / "manifest.csv"),
        step=f"steps_under_test:{step}",
        output=out,
        options=JobSettings(execution=ExecutionOptions(batch_size=9)),
    )
    with open_run(prepare(job)) as run:
        _, (whole,) = run.divide(Cores(total=1, node=1))
    # The run has ended and released its lease, but its shard still runs.
    with pytest.raises(LedgerError, match="run 1 no longer holds the lease"):
        run_shard(whole)
    assert Ledger(LocalStore(out)).part_names() == []


def test_no_outcome_is_recorded_while_the_tables_are_made(words, tmp_path):
    """A lost node would replace a result that the tables name, and its files would be removed."""
    job = job_of(words / "manifest.csv", "steps_under_test:length", tmp_path / "out")
    with open_run(prepare(job)) as run:
        _, (whole,) = run.divide(Cores(total=1, node=1))
        run.finalize()
        with pytest.raises(LedgerError, match="run 1 no longer accepts outcomes"):
            run_shard(whole)
    assert run.ledger.part_names() == []


def test_the_plan_file_keeps_manifest_columns_with_their_inputs(words, tmp_path):
    (words / "m.csv").write_text("input,n\na.txt,1\nb.txt,2\nc.txt,3\nd.txt,4\n")
    job = make_job(
        manifest=str(words / "m.csv"), step="steps_under_test:length", output=str(tmp_path / "out")
    )
    prepared = prepare(job)
    prepared.ledger.create()
    layout = plan_shards(
        np.array([1, 4, 2, 3]), ExecutionOptions(batch_size=1), Cores(total=1, node=1)
    )
    write_run_plan(prepared, 1, layout)
    rows = PlanFile(prepared.ledger, 1).rows(0, 4).to_pylist()
    assert {row["input"]: row["carried"] for row in rows} == {
        "a.txt": {"n": 1},
        "b.txt": {"n": 2},
        "c.txt": {"n": 3},
        "d.txt": {"n": 4},
    }


def test_a_step_that_prints_and_logs_does_not_hang(words, tmp_path, monkeypatch):
    (tmp_path / "chatty.py").write_text(
        "import logging, sys\n"
        "def step(source):\n"
        "    print('x' * 1000); print('y', file=sys.stderr)\n"
        "    logging.getLogger('chatty').warning('z')\n"
        "    return {'n': 1}\n"
    )
    monkeypatch.chdir(tmp_path)
    summary = run_job(words / "manifest.csv", "chatty:step", tmp_path / "out", batch_size=1)
    assert summary.outcomes == {"ok": 4}


def test_a_run_leaves_no_unexpected_files_in_the_dataset(words, tmp_path):
    run_job(words / "manifest.csv", "steps_under_test:fails_on_b", tmp_path / "out")
    found = {
        os.path.relpath(os.path.join(folder, name), tmp_path / "out").split(os.sep)[0]
        for folder, _, names in os.walk(tmp_path / "out")
        for name in names
    }
    tables = {"metadata.csv", "metadata.parquet", "failures.csv"}
    assert found == {".batchmill", "files", "report.html"} | tables
    assert sorted(os.listdir(tmp_path / "out" / ".batchmill")) == AFTER_A_RUN


def test_if_the_torch_dataset_cannot_be_created_all_inputs_fail(words, tmp_path, monkeypatch):
    (tmp_path / "bad_init.py").write_text(
        "class Bad:\n"
        "    def __init__(self, inputs): raise ValueError('no weights')\n"
        "    def __len__(self): return 0\n"
        "    def __getitem__(self, index): return 1\n"
    )
    monkeypatch.chdir(tmp_path)
    summary = run_job(words / "manifest.csv", "bad_init:Bad", tmp_path / "out")
    assert summary.outcomes == {"failed": 4}
    assert summary.failures[0] == ("a.txt", "failed: ValueError: no weights")


def test_a_new_order_of_manifest_rows_runs_the_items_of_a_list_again(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = tmp_path / "listed.py"
    module.write_text("items = [1, 2, 3, 4]\n")
    run_job(words / "manifest.csv", "listed:items", tmp_path / "out")
    (words / "manifest.csv").write_text("input\nd.txt\nc.txt\nb.txt\na.txt\n")
    summary = run_job(words / "manifest.csv", "listed:items", tmp_path / "out")
    assert summary.executed == 4
    table = pd.read_parquet(tmp_path / "out" / "metadata.parquet")
    assert dict(zip(table["input"], table["value"], strict=True))["d.txt"] == 1


def test_a_second_writer_is_rejected_and_the_holder_is_named(tmp_path):
    ledger = Ledger(LocalStore(tmp_path))
    ledger.create()
    with lease(ledger):
        assert f"process {os.getpid()}" in holder(ledger)
        with pytest.raises(LedgerError, match="another run is using it"):
            check_free(ledger)
        with pytest.raises(LedgerError, match="another run is using it"), lease(ledger):
            pass
    assert holder(ledger) is None
    check_free(ledger)


def test_a_split_shard_leaves_its_unbegun_inputs_to_another_shard(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("batchmill.core.ledger.committer.COMMIT_SECONDS", 0.1)
    gated.make_inputs(tmp_path)
    params = {"log": str(tmp_path / "out.log"), "go": str(tmp_path / "go"), "first": 10}
    job = make_job(
        manifest="in",
        step="slow:step",
        output="out",
        params=params,
        options=JobSettings(execution=ExecutionOptions(batch_size=1, num_workers=1)),
    )
    with open_run(prepare(job)) as run:
        _, (whole, *_) = run.divide(Cores(total=1, node=1))
        ask_to_split(whole)
        answers = []

        def wait_for_the_answer():
            answers.append(wait_for(lambda: split(whole), "an answer"))
            (tmp_path / "go").touch()

        waiting = threading.Thread(target=wait_for_the_answer)
        waiting.start()
        run_shard(whole)
        waiting.join()
        ((kept, rest),) = answers
        assert whole.start < kept.stop == rest.start < rest.stop == whole.stop
        assert rest.title.endswith("split off")
        assert kept.key == whole.key, "the ledger records the shard's node under this key"
        assert unfinished([kept, rest]) == [[], list(range(rest.start, rest.stop))]
        run_shard(rest)
        assert unfinished([whole]) == [[]]
        assert len(gated.executions(tmp_path, "out")) == whole.inputs


def test_known_failures_can_be_ignored(words, tmp_path):
    """Then only the failures of the run itself count."""
    ignoring = FailurePolicy(known_failures="ok")
    (words / "a.txt").write_bytes(b"\xff")
    step = "batchmill.steps.words:split"
    first = run_job(words / "manifest.csv", step, tmp_path / "out")
    assert not first.accepted(ignoring)
    (words / "b.txt").write_text("changed")
    second = run_job(words / "manifest.csv", step, tmp_path / "out")
    assert (second.executed, second.outcomes) == (1, {"ok": 3, "failed": 1})
    assert second.accepted(ignoring)
    assert not second.accepted(FailurePolicy())


@pytest.fixture
def slow_store(monkeypatch, request):
    """Reading an input takes this number of seconds."""
    read = read_input.fingerprint

    def slowly(path):
        time.sleep(request.param)
        return read(path)

    monkeypatch.setattr(read_input, "fingerprint", slowly)


def test_the_timeout_does_not_include_the_time_to_read_an_input(words, tmp_path, monkeypatch):
    """The input is read until the watchdog has checked it at a time after the timeout."""
    read, check = read_input.fingerprint, watchdog.Watchdog._check_worker
    reading, checked = tmp_path / "reading", tmp_path / "checked"

    def slowly(path):
        reading.touch()
        wait_for(checked.exists, "a check of the watchdog")
        return read(path)

    def check_later(self, number):
        if checked.exists() or not reading.exists():
            return
        is_second = self._seen.get(number) == self.channels[number].in_use
        later = SimpleNamespace(monotonic=lambda: time.monotonic() + 100, sleep=time.sleep)
        with monkeypatch.context() as clock:
            clock.setattr(watchdog, "time", later)
            check(self, number)
        if is_second:  # The watchdog ignores a slot that it sees for the first time.
            checked.touch()

    monkeypatch.setattr(read_input, "fingerprint", slowly)
    monkeypatch.setattr(watchdog.Watchdog, "_check_worker", check_later)
    policy = FailurePolicy(retries=0, timeout=60)
    step = "batchmill.steps.words:split"
    assert run_job(words / "a*.txt", step, tmp_path / "out", policy=policy).outcomes == {"ok": 1}


@pytest.mark.usefixtures("slow_store")
@pytest.mark.parametrize("slow_store", [60.0], indirect=True)
def test_a_transfer_has_a_time_limit_of_its_own(words, tmp_path, monkeypatch):
    monkeypatch.setattr(watchdog, "TRANSFER_SECONDS", 0.3)
    policy = FailurePolicy(retries=0, timeout=60)
    step = "batchmill.steps.words:split"
    summary = run_job(words / "a*.txt", step, tmp_path / "out", policy=policy)
    assert summary.outcomes == {"timeout": 1}
    assert "its files were not read or stored after 0.3 s" in summary.failures[0][1]


def test_attempts_and_pauses_outlive_the_process_of_a_shard(tmp_path, monkeypatch):
    """The next process of the shard reads the failures and the pauses of its inputs."""
    (tmp_path / "in").mkdir()
    for name, text in {"a": "busy", "b": "fine", "c": "other"}.items():
        (tmp_path / "in" / name).write_text(text)
    (tmp_path / "refuses.py").write_text(
        "import batchmill\n"
        "def step(source):\n"
        "    if source.name == 'a':\n"
        "        raise batchmill.RetryAfter(1000)\n"
        "    return {}\n"
    )
    monkeypatch.setattr(committer, "COMMIT_SECONDS", 0.05)
    monkeypatch.chdir(tmp_path)
    attempts = []

    class Dies(InThisProcess):
        def run(self, run, shards, num_workers):
            (shard,) = shards
            control = run.ledger.control
            monkeypatch.setattr(IsolatedExecutor, "execute", execute_until(control, shard.run))
            with pytest.raises(KeyboardInterrupt):
                run_shard(shard)
            monkeypatch.setattr(IsolatedExecutor, "execute", note)
            run_shard(replace(shard, attempt=2, losses=1))
            return ShardsEnd(reasons=["its process died"])

    execute_all = IsolatedExecutor.execute

    def execute_until(control, run):
        def execute(isolated, **options):
            def wait(seconds):
                assert seconds > 900
                wait_for(lambda: control.read_attempts(run), "the record of the attempts")
                raise KeyboardInterrupt

            monkeypatch.setattr(isolated.stop, "wait", wait)
            execute_all(isolated, **options)

        return execute

    def note(isolated, **options):
        now = time.monotonic()
        attempts.extend((len(isolated.table), isolated.table.give(now, 1).indices))
        (history,) = isolated.table.unfinished().values()
        attempts.extend((history.faults, 900 < history.due - now <= 1000))

    job = job_of(tmp_path / "in", "refuses:step", tmp_path / "out", retries=5)
    execute(prepare(job), Dies(cores=1))
    # Only the failed input is left. It is not executed now.
    assert attempts == [1, [], 1, True]
