"""Polls of Prefect's server during a run."""

from uuid import uuid4

from harness.live import free_ports, wait_for
from prefect.settings import PREFECT_API_URL, temporary_settings

from batchmill.orchestration.cancellation import Cancellation


def test_a_server_that_does_not_respond_is_noticed_and_cancels_nothing(monkeypatch):
    monkeypatch.setattr("batchmill.orchestration.cancellation._ASK_SECONDS", 0.05)
    (port,) = free_ports()
    cancellation = Cancellation(uuid4())
    assert not cancellation.lost_contact
    with (
        temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{port}/api"}),
        cancellation.listening(),
    ):
        wait_for(lambda: cancellation.lost_contact, "a poll without a response")
    assert not cancellation.reason
