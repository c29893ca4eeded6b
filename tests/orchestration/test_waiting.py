"""A flow run shows that it waits for its dataset, and only one of several equal runs waits."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from uuid import uuid4

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.logging import disable_run_logger
from prefect.states import Cancelling, Running

from batchmill import CancelledError
from batchmill.orchestration import waiting
from batchmill.orchestration.waiting import SupersededError, WaitingRun

DEPLOYMENT = uuid4()


class Api:
    """Replaces Prefect's client, and records the states that are set."""

    def __init__(self):
        self.runs, self.states = [], []

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def read_flow_runs(self, flow_run_filter):
        return self.runs

    def set_flow_run_state(self, run, state):
        self.states.append(state.name)


def run_of(seconds=0, **parameters):
    """Return a flow run whose state is this old."""
    state = SimpleNamespace(timestamp=datetime.now(UTC) - timedelta(seconds=seconds))
    return SimpleNamespace(id=uuid4(), deployment_id=DEPLOYMENT, parameters=parameters, state=state)


@pytest.fixture
def api(monkeypatch):
    api, own = Api(), run_of(manifest="/in")
    api.runs.append(own)
    monkeypatch.setattr(waiting, "get_client", lambda sync_client: api)
    monkeypatch.setattr(waiting, "client_without_retries", lambda: api)
    monkeypatch.setattr(waiting, "_current", lambda: own)
    with disable_run_logger():
        yield api


def test_the_states_of_a_run_that_waits(api):
    wait = WaitingRun(lambda: "")
    wait.begin()
    wait.begin()
    wait.end()
    assert api.states == ["Waiting", "Running"]


def test_a_waiting_run_renews_its_state(api, monkeypatch):
    monkeypatch.setattr(waiting, "_RENEW_SECONDS", 0)
    wait = WaitingRun(lambda: "")
    wait.begin()
    wait.begin()
    assert api.states == ["Waiting", "Waiting"]


@pytest.mark.parametrize(
    ("manifest", "seconds", "is_superseded"),
    [
        ("/in", 0, True),
        ("/other", 0, False),
        ("/in", 200, False),  # The process of the other run has died.
    ],
)
def test_only_one_of_several_equal_runs_waits(api, manifest, seconds, is_superseded):
    api.runs.append(run_of(seconds, manifest=manifest))
    wait = WaitingRun(lambda: "")
    if is_superseded:
        with pytest.raises(SupersededError):
            wait.begin()
    else:
        wait.begin()
    assert api.states == ([] if is_superseded else ["Waiting"])


def test_a_cancelled_run_does_not_wait(api):
    wait = WaitingRun(lambda: "by SIGINT")
    with pytest.raises(CancelledError, match="Cancelled by SIGINT, while it waited"):
        wait.begin()
    assert api.states == []


@flow
def waiting_flow():
    pass


@pytest.mark.usefixtures("used_server")
@pytest.mark.parametrize("change", [WaitingRun.begin, WaitingRun.end])
def test_a_cancellation_in_prefect_is_not_undone(monkeypatch, change):
    with get_client(sync_client=True) as client, disable_run_logger():
        run = client.create_flow_run(waiting_flow)
        client.set_flow_run_state(run.id, Running(name="Waiting"), force=True)
        client.set_flow_run_state(run.id, Cancelling())
        monkeypatch.setattr(waiting, "_current", lambda: run)
        change(WaitingRun(lambda: ""))
        assert client.read_flow_run(run.id).state.is_cancelling()
