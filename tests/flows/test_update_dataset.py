"""The flow that updates a dataset, and those that it is made of."""

import sys
from pathlib import Path

import pytest
from batchmill.flows import deployment_checks
from batchmill.flows.update_dataset import update_dataset
from harness.jobs import execute_job, run_job
from prefect.states import Completed, Failed

from batchmill import OptionError
from batchmill.core.options.job_options import JobSettings
from batchmill.core.planning.job import make_job

update_module = sys.modules["batchmill.flows.update_dataset"]
COPY = (
    "def copy(source, out):\n"
    "    text = source.read_text()\n"
    "    if text == 'bad':\n        raise ValueError(text)\n"
    "    (out / 'a.txt').write_text(text)\n"
    "    return {'output': 'a.txt', 'text': text}\n"
)


@pytest.fixture
def chain(tmp_path, monkeypatch):
    """A folder with the datasets `one`, and `two` that is made of it. Runs need no Prefect."""

    def preprocess(*, manifest, step, output, params, run, cluster, return_state, **groups):
        assert run.wait
        assert return_state
        executed.append(Path(output).name)
        options = JobSettings(**groups, run=run)
        job = make_job(manifest=manifest, step=step, output=output, params=params, options=options)
        summary = execute_job(job)
        made = Completed if summary.accepted(options.failures) else Failed
        return made(message=summary.sentence())

    executed = []
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("one")
    (tmp_path / "copying.py").write_text(COPY)
    monkeypatch.chdir(tmp_path)
    run_job("in", "copying:copy", "one")
    run_job("one", "copying:copy", "two")
    monkeypatch.setattr(update_module, "preprocess", preprocess)
    return executed


def update(dataset, **options):
    return update_dataset.fn(str(Path(dataset).absolute()), **options)


def test_the_flow_runs_the_recorded_job(chain):
    Path("in/b.txt").write_text("two")
    state = update("one")
    assert state.is_completed()
    assert state.message.endswith("/one: 2 inputs: 2 ok")
    assert chain == ["one"]
    assert update("one").message.endswith("/one: nothing has changed")
    assert chain == ["one"]


def test_a_deep_update_runs_the_chain_and_ends_at_a_failure(chain):
    Path("in/b.txt").write_text("two")
    state = update("two", deep=True)
    assert state.message.endswith("/two: 2 inputs: 2 ok")
    assert chain == ["one", "two"]
    Path("in/b.txt").write_text("bad")
    state = update("two", deep=True)
    assert state.is_failed()
    assert "/two: not updated, because " in state.message
    assert chain == ["one", "two", "one"]


def test_a_relative_path_in_the_temporary_folder_of_a_deployment_is_rejected(tmp_path, monkeypatch):
    (tmp_path / "tmp-prefect").mkdir()
    monkeypatch.chdir(tmp_path / "tmp-prefect")
    monkeypatch.setattr(deployment_checks, "_is_deployed", lambda: True)
    with pytest.raises(OptionError, match="works in a temporary folder"):
        update_dataset.fn("two")
