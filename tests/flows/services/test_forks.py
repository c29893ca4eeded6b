"""A process that has used Prefect may be forked: by a DataLoader, say."""

import multiprocessing
import threading

import batchmill.flows.services.api  # noqa: F401  # What is used of Prefect, is used by way of it.
import pytest
from prefect.events import emit_event
from prefect.settings import PREFECT_API_URL, temporary_settings


@pytest.fixture
def used(prefect_server):
    """This process has told a Prefect server of something, which starts a thread of Prefect's."""
    with temporary_settings({PREFECT_API_URL: prefect_server}):
        emit_event("batchmill.tested", resource={"prefect.resource.id": "batchmill.test"})
        assert "EventsWorkerThread" in [thread.name for thread in threading.enumerate()]
        yield


@pytest.mark.usefixtures("used")
def test_its_forks_end_as_others_do():
    forks = [multiprocessing.get_context("fork").Process(target=print) for _ in range(2)]
    for fork in forks:
        fork.start()
    for fork in forks:
        fork.join(60)
    assert [fork.exitcode for fork in forks] == [0, 0]
