"""The log of a flow run while its inputs are executed."""

from types import SimpleNamespace

from prefect import flow

from batchmill.orchestration.flow_observer import FlowObserver
from batchmill.runs.progress import Failure, Progress


def test_an_input_with_two_outcomes_is_logged_once(used_server, caplog):
    """After the second outcome of an input, the order of the failures may be another one."""
    first, second, third = (Failure(f"{name}.txt", "error", 1, "broken") for name in "abc")

    @flow
    def shown():
        options = SimpleNamespace(failures=None)
        job = SimpleNamespace(output="/data/out", step="steps:step", options=options)
        prepared = SimpleNamespace(job=job, manifest=range(5))
        observer = FlowObserver(cancellation=None, wait=None)
        observer.begin(SimpleNamespace(prepared=prepared, number=1, pending=5))
        for failures in ([first, second], [third, first]):
            observer.show(Progress(total=5, done=3, failed=2, failures=tuple(failures)))

    shown()
    logged = [record.message for record in caplog.records if ": error: broken" in record.message]
    assert logged == [f"{name}.txt: error: broken" for name in "abc"]
