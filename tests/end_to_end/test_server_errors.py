"""A Prefect server that fails for a moment leaves no flow run without a final state."""

from functools import partial

import pytest
from harness.counted_api import counted_api
from harness.live import ask, clean_environment, flow_run_of, shell_in

JOB = ["run", "in", "--step", "batchmill.steps.words:split", "-o", "out"]


@pytest.fixture
def inputs(work):
    (work / "in").mkdir()
    (work / "in" / "a.txt").write_text("word")
    return work / "in"


@pytest.mark.usefixtures("inputs")
def test_an_error_at_the_end_of_a_run_is_retried(prefect_server, work, tmp_path):
    with counted_api(prefect_server) as proxy:
        environment = clean_environment(tmp_path / "home") | {"PREFECT_API_URL": proxy.url}
        with shell_in(work, environment) as shell:
            proxy.fails = b'"name":"Completed","message":"1 inputs: 1 ok"'
            assert shell.batchmill(*JOB).returncode == 0
    assert proxy.fails is None
    flow_run, _ = flow_run_of(partial(ask, prefect_server), work / "out")
    assert flow_run["state"]["type"] == "COMPLETED"


def test_the_next_run_with_work_ends_the_flow_run_of_an_earlier_one(shell, api, work, inputs):
    (inputs / "b.txt").write_bytes(b"\xff")
    assert shell.batchmill(*JOB).returncode == 1
    lost, _ = flow_run_of(api, work / "out")
    # As if its end had not arrived.
    state = {"type": "RUNNING", "name": "Running"}
    api(f"/flow_runs/{lost['id']}/set_state", {"state": state, "force": True})
    assert shell.batchmill(*JOB).returncode == 1, "it has no work"
    (inputs / "c.txt").write_text("word")
    assert shell.batchmill(*JOB).returncode == 1
    state = api(f"/flow_runs/{lost['id']}")["state"]
    expected = ("FAILED", "Prefect's server did not respond when this run ended.")
    assert (state["type"], state["message"]) == expected
