"""`--accept-change` keeps the outputs that an earlier version of the step's code made."""

import pandas as pd
import pytest
from harness.copying_job import HELPER, STEP, CopyingJob
from harness.jobs import run_job

from batchmill import OptionError
from batchmill.cli.main import main
from batchmill.datasets.maintenance.verify import verify
from batchmill.datasets.publishing.run_summary import adoption_lines, summarise

pytestmark = pytest.mark.slow

FAILING = STEP.replace(
    "    with open", "    if source.name == '00003.txt': raise ValueError('three')\n    with open"
)
ACCEPT = {"options": {"accept_change": True}}
SENTENCE = "{} kept, on the user's word."


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A dataset of 20 inputs, whose step was edited after the run."""
    monkeypatch.chdir(tmp_path)
    job = CopyingJob(tmp_path, 20)
    job.run()
    job.edit(helper=HELPER.replace("len(", "0 + len("))
    return job


def plan(job, **params):
    return job.plan(accept_change=True, params=params)


def test_outcomes_are_adopted_once(job):
    before = (job.dataset / "metadata.parquet").read_bytes()
    assert job.reasons() == {"changed": 20}
    prepared = plan(job)
    assert {name: n for name, n in prepared.plan.counts.items() if n} == {"adopted": 20}
    assert prepared.step_changes == [f"step > {job.helper}.measure changed"]
    assert job.run(**ACCEPT) == 0
    summary = summarise(job.ledger, job.ledger.last_known_run())
    assert summary.outcomes == {"ok": 20}
    assert adoption_lines(job.ledger) == [f"run 2: {SENTENCE.format('20 earlier outcomes')}"]
    assert (job.dataset / "metadata.parquet").read_bytes() == before
    assert list(verify(job.ledger)) == []
    # The records have the new step, so the next run needs no option.
    assert job.reasons() == {"unchanged": 20}
    assert job.run(**ACCEPT) == 0
    assert job.reasons() == {"unchanged": 20}


def test_a_kept_outcome_is_in_use_while_its_rows_are_in_the_table(job):
    job.names.pop()
    job.list()
    job.run(**ACCEPT)
    kept = adoption_lines(job.ledger)
    assert kept == [f"run 2: {SENTENCE.format('19 earlier outcomes')}"]
    failing = FAILING.replace("source.name == '00003.txt'", "True")
    job.edit(step=failing.format(helper=job.helper))
    job.run()
    assert set(pd.read_parquet(job.dataset / "metadata.parquet")["stale"]) == {True}
    assert adoption_lines(job.ledger) == kept
    job.edit(step=STEP.format(helper=job.helper))
    job.run(force=True)  # The withdrawn input keeps its result of the first run.
    assert adoption_lines(job.ledger) == []


def test_only_unchanged_inputs_are_adopted(job):
    job.path("00001.txt").write_text("00009.txt")
    job.output("00002.txt").unlink()
    job.names.append("new.txt")
    job.path("new.txt").write_text("new")
    job.list()
    counts = plan(job).plan.counts
    assert {name: n for name, n in counts.items() if n} == {
        "new": 1, "changed": 1, "damaged": 1, "adopted": 18,
    }  # fmt: skip
    assert job.run(**ACCEPT) == 3
    assert job.reasons() == {"unchanged": 21}
    assert job.output("00001.txt").read_text() == "00009.txt"


def test_failed_inputs_are_executed_with_the_changed_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = CopyingJob(tmp_path, 5)
    job.edit(step=FAILING.format(helper=job.helper))
    job.run()
    job.edit(step=STEP.format(helper=job.helper))
    assert job.run(**ACCEPT) == 1
    assert list(pd.read_parquet(job.dataset / "metadata.parquet")["length"]) == [9] * 5
    assert job.reasons() == {"unchanged": 5}


def test_changed_rows_are_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.csv").write_text("input,label\na.txt,x\nb.txt,y\n")
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    job = CopyingJob.__new__(CopyingJob)
    job.folder, job.module, job.helper = tmp_path, "rows_step", "rows_helper"
    step = "def step(source, row):\n    return {'label': row['label'], 'n': N}\n"
    job.edit(step=f"N = 1\n{step}")
    run_job("m.csv", "rows_step:step", "out")
    (tmp_path / "m.csv").write_text("input,label\na.txt,x\nb.txt,z\n")
    job.edit(step=f"N = 2\n{step}")
    assert run_job("m.csv", "rows_step:step", "out", **ACCEPT).executed == 1
    rows = pd.read_parquet(tmp_path / "out" / "metadata.parquet")[["label", "n"]]
    assert rows.to_numpy().tolist() == [["x", 1], ["z", 2]]


def test_a_change_of_the_params_is_not_accepted(job):
    with pytest.raises(OptionError) as error:
        plan(job, times=2)
    assert str(error.value) == (
        "--accept-change: no outcome can be kept, because the parameter times changed from 1 to 2. "
        "The option accepts only a change of the step's code. Drop it to execute the inputs again."
    )


def test_the_commands_say_that_outcomes_are_adopted(job, capsys):
    def shown(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        assert ended.value.code == 0
        return "".join(capsys.readouterr())

    command = (job.folder / "m.csv", "--step", f"{job.module}:step", "--output", job.dataset)
    sentence = SENTENCE.format("20 earlier outcomes")
    change = f"Accepted change: step > {job.helper}.measure changed."
    assert sentence not in shown("plan", *command)
    for text in (
        shown("plan", *command, "--accept-change"),
        shown("run", *command, "--accept-change"),
    ):
        assert f"{sentence}\n{change}\n" in text
    assert sentence in shown("status", job.dataset)
    assert sentence not in shown("plan", *command)
