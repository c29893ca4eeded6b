"""A process that has used Prefect can be forked, for example by a DataLoader."""

import multiprocessing
import threading

import pytest
from prefect.events import emit_event


@pytest.fixture
def used(used_server):
    """This process has sent an event to a Prefect server, which starts a thread of Prefect."""
    emit_event("batchmill.tested", resource={"prefect.resource.id": "batchmill.test"})
    assert "EventsWorkerThread" in [thread.name for thread in threading.enumerate()]


@pytest.mark.usefixtures("used")
def test_forks_exit_with_0():
    forks = [multiprocessing.get_context("fork").Process(target=print) for _ in range(2)]
    for fork in forks:
        fork.start()
    for fork in forks:
        fork.join(60)
    assert [fork.exitcode for fork in forks] == [0, 0]
