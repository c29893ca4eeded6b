"""The states in Prefect of a run that was killed, or whose server was away."""

from uuid import uuid4

import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.states import Cancelled, Completed, Crashed, Failed, Running

from batchmill.orchestration.server.api import TaskRunEnd, end_flow_run, record_ends


@flow
def killed():
    pass


@task
def shard():
    pass


@pytest.fixture
def client(used_server):
    with get_client(sync_client=True) as one:
        yield one


@pytest.mark.parametrize(
    ("before", "after", "of_shards"),
    [
        (Running(), ("CRASHED", "killed"), "CRASHED"),
        (Crashed(message="by the worker"), ("CRASHED", "by the worker"), "CRASHED"),
        (Cancelled(message="by you"), ("CANCELLED", "by you"), "CANCELLED"),
        (Completed(message="fine"), ("COMPLETED", "fine"), "RUNNING"),
        (Failed(message="2 failed"), ("FAILED", "2 failed"), "RUNNING"),
    ],
)
def test_a_killed_run_and_its_task_runs_are_ended(client, before, after, of_shards):
    run = client.create_flow_run(killed)
    states = [Running(), Completed(message="done")]
    shards = [
        client.create_task_run(
            shard, flow_run_id=run.id, dynamic_key=str(number), id=uuid4(), state=state
        )
        for number, state in enumerate(states)
    ]
    client.set_flow_run_state(run.id, before, force=True)
    end_flow_run(run.id, Crashed(message="killed"))
    shown = client.read_flow_run(run.id).state
    assert (shown.type.value, shown.message) == after
    found = [client.read_task_run(one.id).state.type.value for one in shards]
    assert found == [of_shards, "COMPLETED"]


@pytest.mark.parametrize(("after_outage", "of_others"), [(False, "RUNNING"), (True, "COMPLETED")])
def test_after_an_outage_all_task_runs_get_their_ends(client, after_outage, of_others):
    run = client.create_flow_run(killed)
    of_shard, of_table = [
        client.create_task_run(
            shard, flow_run_id=run.id, dynamic_key=key, id=uuid4(), state=Running()
        ).id
        for key in ("shard", "table")
    ]
    ends = [TaskRunEnd(of_shard, "shard 1", Failed(message="2 failed"))]
    record_ends(run.id, shard, ends, after_outage=after_outage)
    assert client.read_task_run(of_shard).state.message == "2 failed"
    assert client.read_task_run(of_table).state.type.value == of_others
