"""`--verify-change` executes a random sample with changed code, and keeps all outputs if equal."""

import json
import tempfile
from pathlib import Path

import pytest
from harness.copying_job import HELPER, STEP, CopyingJob
from harness.jobs import job_of

from batchmill import OptionError
from batchmill.cli.main import main
from batchmill.core.planning.prepare import prepare
from batchmill.datasets.publishing.run_summary import adoption_lines
from batchmill.runs.execute import InThisProcess, execute
from batchmill.runs.verify_change import verify_change

pytestmark = pytest.mark.slow

SAME = HELPER.replace("len(", "0 + len(")


@pytest.fixture
def cold_job(tmp_path, monkeypatch):
    """A dataset of 20 inputs. Each sample is executed in a new process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "scratch").mkdir()
    job = CopyingJob(tmp_path, 20)
    job.run()
    return job


@pytest.fixture
def job(cold_job, warm_process):
    """A dataset of 20 inputs. The code of its step can be changed once before a sample."""
    return cold_job


def executed(job):
    log = job.folder / "executed"
    names = log.read_text().split() if log.exists() else []
    log.unlink(missing_ok=True)
    return names


def check(job, count=5, **options):
    executed(job)
    prepared = prepare(job.job(verify_change=count, num_workers=1, **options))
    checked = verify_change(prepared)
    assert not list((job.folder / "scratch").iterdir()), "the sample leaves nothing"
    return checked


def run(job, checked):
    execute(checked, InThisProcess())


def test_equal_results_are_kept_after_a_sample(job):
    before = (job.dataset / "metadata.parquet").read_bytes()
    job.edit(helper=SAME)
    checked = check(job)
    found = checked.change_check
    assert len(set(executed(job))) == 5
    assert found.is_equal
    assert (found.inputs, found.sample) == (20, 5)
    text = f"0 of 5 differ (seed {found.seed}): under 45.1 % of all 20 at 95 % confidence."
    assert found.lines() == [f"--verify-change: {text}"]
    assert not len(checked.plan.pending)
    run(job, checked)
    assert executed(job) == []
    assert (job.dataset / "metadata.parquet").read_bytes() == before
    assert adoption_lines(job.ledger) == [f"run 2: 20 earlier outcomes kept: {text}"]
    assert job.reasons() == {"unchanged": 20}


def test_a_note_of_an_adoption_ends_when_all_inputs_are_executed_again(job):
    job.edit(helper=SAME)
    run(job, check(job, 20))
    assert adoption_lines(job.ledger) == ["run 2: 20 earlier outcomes kept: all 20 are equal."]
    job.run(force=True)
    assert adoption_lines(job.ledger) == []


def test_a_different_value_executes_all_inputs(job):
    job.edit(helper=HELPER.replace("len(", "1 + len("))
    checked = check(job)
    first = sorted(set(executed(job)))[0]
    found = checked.change_check
    assert (found.different, len(found.differences)) == (5, 5)
    assert found.differences[0] == f"in/{first}: length: 9 -> 10"
    assert found.lines()[0] == (
        f"--verify-change: 5 of 5 differ (seed {found.seed}), so all inputs are executed."
    )
    run(job, checked)
    assert len(executed(job)) == 20
    assert adoption_lines(job.ledger) == []


@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        ("* times", "* times + '!'", "copy.txt: 9 bytes -> 10 bytes, other content"),
        ("read_text() *", "read_text()[::-1] *", "copy.txt: 9 bytes -> 9 bytes, other content"),
        ("copy.txt", "other.txt", "copy.txt is not written"),
        ('"length":', '"size": 1, "length":', "size: no value -> 1"),
        ("    with", "    raise ValueError('three')\n    with", "failed: ValueError: three"),
        ("    with", "    import os; os._exit(3)\n    with", "crashed: "),
    ],
)
def test_each_difference_is_described(job, old, new, difference):
    job.edit(step=STEP.format(helper=job.helper).replace(old, new))
    found = check(job, 2, retries=0).change_check
    assert not found.is_equal
    assert difference in found.differences[0]


def test_without_changed_code_nothing_is_executed(job):
    assert check(job).change_check.reason == (
        "there is no input with changed code as its only reason"
    )
    assert check(job, params={"times": 2}).change_check.reason == (
        "the parameter times changed from 1 to 2"
    )
    assert executed(job) == []


def test_only_inputs_with_no_other_reason_are_compared_and_kept(job):
    job.path("00001.txt").write_text("other")
    job.output("00002.txt").unlink()
    job.edit(helper=SAME)
    checked = check(job, 100)
    assert {name: n for name, n in checked.plan.counts.items() if n} == {
        "changed": 1, "damaged": 1, "adopted": 18,
    }  # fmt: skip
    assert not {"00001.txt", "00002.txt"} & set(executed(job))


@pytest.mark.usefixtures("warm_process")
def test_outputs_in_packs_are_compared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = CopyingJob(tmp_path, 5)
    job.run(options={"pack": "1MB"})
    job.edit(helper=SAME)
    checked = verify_change(prepare(job.job(verify_change=3, pack="1MB", num_workers=1)))
    assert checked.change_check.is_equal


def test_a_cancelled_sample_is_requested_to_stop(job):
    scratch = job.folder / "scratch"
    wait = f"while not list(Path({str(scratch)!r}).rglob('runs/*/stop')): time.sleep(0.01)"
    step = STEP.format(helper=job.helper).replace("    with", f"    {wait}\n    with")
    job.edit(step=f"import time\n{step}")
    prepared = prepare(job.job(verify_change=20, timeout=60, retries=0, num_workers=1))
    checked = verify_change(prepared, is_cancelled=lambda: True)
    # Without a request to stop, the inputs exceed the time limit.
    assert not any("timeout" in line for line in checked.change_check.differences)


@pytest.mark.usefixtures("used_server")
def test_the_commands_show_the_comparison(cold_job, capsys):
    job = cold_job

    def shown(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        assert ended.value.code == 0
        return "".join(capsys.readouterr())

    command = (job.folder / "m.csv", "--step", f"{job.module}:step", "--output", job.dataset)
    job.edit(helper=SAME)
    assert "is equal: --verify-change 300\n" in shown("plan", *command)
    assert "sample" not in shown("plan", *command, "--force")
    assert "compares a sample of 4 inputs" in shown("plan", *command, "--verify-change", 4)
    ran = shown("run", *command, "--verify-change", 4)
    assert "--verify-change: 0 of 4 differ" in ran
    assert "20 earlier outcomes kept: 0 of 4 differ" in ran
    for name in ("status", "verify"):
        assert "run 2: 20 earlier outcomes kept: 0 of 4" in shown(name, job.dataset)
    assert "0 of 4 differ" in (job.dataset / "report.html").read_text()
    job.edit(helper=HELPER.replace("len(", "1 + len("))
    found = json.loads(shown("run", *command, "--verify-change", 4, "--json").splitlines()[-1])
    assert (found["executed"], found["change_check"]["different"]) == (20, 4)


@pytest.mark.parametrize(
    "options",
    [
        {"accept_change": True, "verify_change": 5},
        {"force": True, "verify_change": 5},
        {"force": True, "accept_change": True},
    ],
)
def test_one_option_at_a_time(options):
    with pytest.raises(OptionError, match="cannot be combined"):
        job_of("m.csv", "step:step", "out", **options)


def test_a_sample_reads_nothing_outside_of_an_allowlist(cold_job, monkeypatch):
    job = cold_job
    job.edit(helper=SAME)
    for name in ("INPUTS", "DATASETS"):
        places = f"{Path(job.dataset)},{job.folder / 'in'},{job.folder / 'm.csv'}"
        monkeypatch.setenv(f"BATCHMILL_ALLOWED_{name}", places)
    assert check(job).change_check.is_equal
