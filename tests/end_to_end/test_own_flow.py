"""A run inside a user's own Prefect flow."""

import json

import pytest
from harness.live import flow_run_of

# Prints the result, and the number of servers that batchmill has started.
SCRIPT = """
import json, sys
import batchmill
from prefect import flow, task

started = []

def count_servers(event, arguments):
    if event == "subprocess.Popen" and "server_process" in str(arguments[1]):
        started.append(1)

sys.addaudithook(count_servers)

def run():
    result = batchmill.run("words", "batchmill.steps.words:split", "out", params={"num_chars": 3})
    return result.counts, len(result.metadata)

@flow
def in_flow():
    return run()

@flow
def in_task():
    return task(run).submit().result()

print(json.dumps([*%s(), len(started)]))
"""


WITH_METRICS = """
import json
from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
import batchmill

reader = InMemoryMetricReader()
set_meter_provider(MeterProvider([reader]))
batchmill.run("words", "batchmill.steps.words:split", "out", params={"num_chars": 3})
found = {
    metric.name: sum(getattr(p, "count", None) or p.value for p in metric.data.data_points)
    for resource in reader.get_metrics_data().resource_metrics
    for scope in resource.scope_metrics if scope.scope.name == "batchmill"
    for metric in scope.metrics
}
print(json.dumps(found))
"""


CANCELLED_LATE = """
import batchmill
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run
from prefect.states import Cancelling
from batchmill.orchestration.flow_observer import FlowObserver

final_state = FlowObserver.final_state

def cancel_first(self, ended):
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(flow_run.get_id(), Cancelling())
    return final_state(self, ended)

FlowObserver.final_state = cancel_first
try:
    batchmill.run("words", "batchmill.steps.words:split", "out", params={"num_chars": 3})
except batchmill.CancelledError as error:
    print(error)
"""


FAILING_STORE = """
import batchmill
from batchmill.orchestration.flow_observer import FlowObserver

def fail(*arguments):
    raise batchmill.StoreError("s3://bucket", "does not respond.")

FlowObserver.write_tables = fail
try:
    batchmill.run("words", "batchmill.steps.words:split", "out", params={"num_chars": 3})
except batchmill.BatchmillError as error:
    print(type(error).__name__, error)
"""


def test_an_error_of_a_store_during_a_run_is_no_rejected_argument(shell, words, work):
    words.rename(work / "words")
    (work / "words" / "manifest.csv").unlink()
    done = shell.python(FAILING_STORE)
    assert done.stdout == "RunError s3://bucket: does not respond.\n", done.stderr


def test_a_run_that_is_cancelled_in_prefect_after_its_tables_are_written(shell, api, words, work):
    words.rename(work / "words")
    (work / "words" / "manifest.csv").unlink()
    done = shell.python(CANCELLED_LATE)
    assert done.stdout == "Cancelled in Prefect, when the run was about to end.\n", done.stderr
    flow_run, _ = flow_run_of(api, work / "out")
    assert flow_run["state"]["type"] == "CANCELLED"


def test_a_run_reports_metrics_to_the_provider_of_the_program(shell, words, work):
    words.rename(work / "words")
    (work / "words" / "manifest.csv").unlink()
    done = shell.python(WITH_METRICS)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["batchmill.inputs"] == found["batchmill.input.duration"] == 4
    assert found["batchmill.runs"] == 1
    assert found["batchmill.inputs.pending"] == 0
    assert found["batchmill.input.size"] > 0


@pytest.mark.parametrize("where", ["in_flow", pytest.param("in_task", marks=pytest.mark.long)])
def test_a_run_uses_the_server_of_the_flow_around_it(where, bare_shell, words, work):
    words.rename(work / "words")
    (work / "words" / "manifest.csv").unlink()
    # Prefect's server needs more than the usual 20 s on a busy machine.
    bare_shell.environment["PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"] = "180"
    done = bare_shell.python(SCRIPT % where)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [{"ok": 4}, 15, 0]
