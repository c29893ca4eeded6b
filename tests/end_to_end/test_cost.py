"""The overhead of a run: its task runs, calls to Prefect's API, and bytes sent to Ray."""

import sys
import uuid
from collections import Counter
from functools import partial
from typing import NamedTuple

from harness.counted_api import counted_api
from harness.live import STEP_MODULES, ask, clean_environment, flow_run_of, shell_in

FEW, MANY = 100, 400
# The number of these calls depends on the duration of the run and the load of the server. A run
# checks every two seconds whether it was cancelled. It updates artifacts every second, and sends
# logs every two seconds. At its end, it polls until the server has recorded the ends of the task
# runs, or records them itself.
BY_TIME = {
    "GET /flow_runs/ID",
    "PATCH /artifacts/ID",
    "POST /logs/",
    "POST /task_runs/filter",
    "POST /task_runs/",
    "POST /task_runs/ID/set_state",
}
# A web socket for events is one call, after a request for the server's version. A shard opens a
# second one for its end, and requests a token for the last line of its log. These calls are missing
# if Ray stops the process first, because the server is slow.
AT_THE_END = {"GET /events/in", "GET /admin/version", "GET /csrf-token"}
ALWAYS = {
    "GET /admin/storage": 3,
    "GET /admin/version": 2,
    "GET /csrf-token": 4,
    "GET /events/in": 1,
    "GET /flows/ID": 1,
    "GET /health": 1,
    "PATCH /flow_runs/ID": 1,
    "POST /flow_runs/": 1,
    "POST /flow_runs/ID/set_state": 2,
    "POST /flows/": 1,
    "POST /flows/filter": 1,
}
# The progress and the summary.
WITH_WORK = {**ALWAYS, "POST /artifacts/": 2}
OF_A_SHARD = {
    "GET /admin/version": 2,
    "GET /csrf-token": 2,
    "GET /events/in": 2,
    "GET /flows/ID": 1,
}
# A Ray task gets the flow run, the step's module and the shard, but not the inputs.
MOST_BYTES = 50_000


class Cost(NamedTuple):
    """The overhead of a run: calls, names of its task runs, and bytes of each task sent to Ray.

    `polls` is the number of requests for the states of task runs.
    """

    calls: Counter
    task_runs: list[str]
    shipped: list[int]
    polls: int


def cost_of_run(shell, api, server, count, runner):
    """Run a job over `count` inputs, and return its cost. Two batches are always one shard."""
    inputs = shell.folder / f"in{count}"
    inputs.mkdir(exist_ok=True)
    for number in range(count):
        path = inputs / f"{number:04d}.txt"
        if not path.exists():
            path.write_text("word")
    shipped = shell.folder / f"shipped-{uuid.uuid4().hex}"
    job = [f"in{count}", "--step", "costs:step", "--output", f"out{count}"]
    division = ["--num-workers", "2", "--batch-size", str(count // 2), *runner]
    script = STEP_MODULES / "shipped.py"
    done = shell.run(sys.executable, script, shipped, "run", *job, *division)
    assert done.returncode == 0, done.stderr
    taken = api.take()
    calls = Counter({call: n for call, n in taken.items() if call.route not in BY_TIME})
    polls = sum(n for call, n in taken.items() if call.route == "POST /task_runs/filter")
    _, task_runs = flow_run_of(partial(ask, server), shell.folder / f"out{count}")
    bytes_shipped = [int(line) for line in shipped.read_text().split()] if shipped.exists() else []
    return Cost(calls, sorted(task["name"] for task in task_runs), bytes_shipped, polls)


def more_calls(caller, cost, bounds):
    """Describe the routes that `caller` calls more often than allowed. A missing bound is 0."""
    return [
        f"{caller}: {count} x {call.route}, {bounds.get(call.route, 0)} allowed"
        for call, count in cost.calls.items()
        if call.caller == caller and count > bounds.get(call.route, 0)
    ]


def test_the_overhead_does_not_grow_with_the_inputs(prefect_server, work, tmp_path, runner):
    (work / "costs.py").write_text("def step(source):\n    return {'n': 1}\n")
    with counted_api(prefect_server) as api:
        # The script shipped.py imports Ray before batchmill can set a token. Without this token,
        # Ray would write one to the user's home folder.
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex}
        environment = clean_environment(tmp_path / "home") | {"PREFECT_API_URL": api.url} | token
        with shell_in(work, environment) as shell:
            few, many = (
                cost_of_run(shell, api, prefect_server, count, runner) for count in (FEW, MANY)
            )
            done = shell.batchmill("run", f"in{MANY}", "--step", "costs:step", "-o", f"out{MANY}")
            assert done.returncode == 0, done.stderr
            idle = api.take()

    # The task runs: the shard, the manifest, the tables and the report.
    of_a_shard = OF_A_SHARD if runner else {}
    for cost in (few, many):
        assert len(cost.task_runs) == 4, cost.task_runs
        faults = more_calls("driver", cost, WITH_WORK) + more_calls("Ray worker", cost, of_a_shard)
        assert not faults, faults
        callers = {call.caller for call in cost.calls}
        expected = {"driver", "Ray worker"} if runner else {"driver"}
        assert callers == expected, "the proxy missed calls"

    # More inputs cause no additional calls. The bytes for Ray grow by less than one byte per input,
    # because some numbers have more digits.
    more = [call for call in many.calls - few.calls if call.route not in AT_THE_END]
    assert not more, more
    if runner:
        # Only the shard is a Ray task.
        assert len(few.shipped) == len(many.shipped) == 1
        assert 0 < few.shipped[0] < MOST_BYTES
        assert many.shipped[0] - few.shipped[0] < MANY - FEW, f"{few.shipped}, {many.shipped}"
    else:
        assert few.shipped == many.shipped == []

    # The run does not poll until the time limit of twenty seconds.
    for cost in (few, many):
        assert cost.polls < 20, cost.polls

    # A run with nothing to do calls no server.
    assert not idle, idle
