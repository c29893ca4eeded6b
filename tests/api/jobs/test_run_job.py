"""A job from Python: errors are reported before anything is written."""

from contextlib import nullcontext
from functools import partial

import httpx
import pytest
from harness.crashing import in_child
from harness.jobs import job_of, run_job
from prefect.settings import PREFECT_API_URL, temporary_settings

import batchmill
from batchmill import LedgerError, OptionError, RunError, ServiceError
from batchmill.api.jobs import flow_run
from batchmill.api.jobs import run_job as jobs
from batchmill.api.jobs.idle_run import JobEnd
from batchmill.core.ledger.lease import lease
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.planning.prepare import prepare
from batchmill.core.storage import LocalStore

SPLIT = "batchmill.steps.words:split"


@pytest.mark.parametrize(
    "wrong", [{"cluster": "nowhere"}, {"batch_size": 0}, {"max_failures": "some"}, {"retry": 3}]
)
def test_the_list_of_a_rejected_run_is_not_saved(words, tmp_path, wrong):
    with pytest.raises(OptionError):
        batchmill.run([words / "a.txt"], SPLIT, tmp_path / "out", **wrong)
    assert not (tmp_path / "out").exists()


def test_the_list_of_an_active_run_is_not_replaced(words, tmp_path):
    ledger = Ledger(LocalStore(tmp_path / "out"))
    ledger.create()
    with lease(ledger), pytest.raises(LedgerError, match="another run is using it"):
        batchmill.run([words / "a.txt"], SPLIT, tmp_path / "out")
    assert not (tmp_path / "out" / ".batchmill" / "manifest.parquet").exists()


def test_the_list_of_a_run_whose_server_does_not_respond_is_not_saved(words, tmp_path):
    nowhere = temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"})
    with nowhere, pytest.raises(ServiceError):
        batchmill.run([words / "a.txt"], SPLIT, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_run_of_another_process_is_not_the_own_one(words, tmp_path, monkeypatch):
    """The server stops responding while the own run waits for the other one."""
    prepared = prepare(job_of(words, SPLIT, tmp_path / "out"))

    def wait_in_vain(**_):
        assert in_child(partial(run_job, words, SPLIT, tmp_path / "out")) == 0
        prepared.ledger.control.record_flow_run(1, "another")
        raise httpx.ConnectError("refused")

    monkeypatch.setattr(flow_run, "preprocess", wait_in_vain)
    monkeypatch.setattr(flow_run, "shared_api", nullcontext)
    with pytest.raises(RunError, match="stopped responding"):
        flow_run.run_flow("", {"cluster": "none"}, prepared)


def test_a_run_of_a_sample_forecasts_the_other_inputs_from_it(words, tmp_path, monkeypatch):
    def execute(*_):
        run_job(words, SPLIT, tmp_path / "out", options={"sample": 2})
        return JobEnd(1)

    monkeypatch.setattr(jobs, "_execute", execute)
    result = batchmill.run(words, SPLIT, tmp_path / "out", sample=2)
    assert (result.forecast.measured, result.forecast.inputs) == (2, 3)
