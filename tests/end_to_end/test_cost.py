"""What a run costs beyond its inputs, counted: task runs, calls to Prefect's API, bytes to Ray."""

import sys
import uuid
from collections import Counter
from functools import partial
from typing import NamedTuple

from counted_api import counted_api
from live import ROOT, ask, clean_environment, flow_run_of, shell_in

FEW, MANY = 100, 400
# How often these are called is a matter of how long a run takes, or how busy the server is: whether
# it was cancelled is asked every two seconds, what is shown live changes once a second, logs are
# sent every two seconds, and how task runs ended is asked until the server knows; or it is told.
BY_TIME = {
    "GET /flow_runs/ID",
    "PATCH /artifacts/ID",
    "POST /logs/",
    "POST /task_runs/filter",
    "POST /task_runs/",
    "POST /task_runs/ID/set_state",
}
# A web socket for events is one call, and which version the server has is asked before. A shard's
# second one is for how it ended: where the server is slow, Ray is stopped before. So it is with the
# last line of a shard's log, for which a token is asked.
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
# The flow run, the step's module, the shard: not its inputs.
MOST_BYTES = 50_000


class Cost(NamedTuple):
    """What a run has cost: calls, its task runs' names, and the bytes of each task given to Ray.

    `asked` counts how often it was asked how task runs ended.
    """

    calls: Counter
    task_runs: list[str]
    shipped: list[int]
    asked: int


def cost_of_run(shell, api, server, count, runner):
    """Run a job over so many inputs, in two batches, which are one shard on any machine."""
    inputs = shell.folder / f"in{count}"
    inputs.mkdir(exist_ok=True)
    for number in range(count):
        path = inputs / f"{number:04d}.txt"
        if not path.exists():
            path.write_text("word")
    shipped = shell.folder / f"shipped-{uuid.uuid4().hex}"
    job = [f"in{count}", "--step", "costs:step", "--output", f"out{count}"]
    division = ["--num-workers", "2", "--batch-size", str(count // 2), *runner]
    script = ROOT / "tests" / "support" / "shipped.py"
    done = shell.run(sys.executable, script, shipped, "run", *job, *division)
    assert done.returncode == 0, done.stderr
    taken = api.take()
    calls = Counter({call: n for call, n in taken.items() if call.route not in BY_TIME})
    asked = sum(n for call, n in taken.items() if call.route == "POST /task_runs/filter")
    _, task_runs = flow_run_of(partial(ask, server), shell.folder / f"out{count}")
    bytes_shipped = [int(line) for line in shipped.read_text().split()] if shipped.exists() else []
    return Cost(calls, sorted(task["name"] for task in task_runs), bytes_shipped, asked)


def more_calls(who, cost, bounds):
    """Name the routes that `who` calls more often than `bounds` say; what they lack is 0."""
    return [
        f"{who}: {count} x {call.route}, {bounds.get(call.route, 0)} before"
        for call, count in cost.calls.items()
        if call.caller == who and count > bounds.get(call.route, 0)
    ]


def test_what_a_run_costs_beyond_its_inputs(prefect_server, work, tmp_path, runner):
    (work / "costs.py").write_text("def step(source):\n    return {'n': 1}\n")
    with counted_api(prefect_server) as api:
        # Ray would write a token into the user's folder, because what is shipped is counted by a
        # script that imports Ray before batchmill can give it one.
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex}
        environment = clean_environment(tmp_path / "home") | {"PREFECT_API_URL": api.url} | token
        with shell_in(work, environment) as shell:
            few, many = (
                cost_of_run(shell, api, prefect_server, count, runner) for count in (FEW, MANY)
            )
            done = shell.batchmill("run", f"in{MANY}", "--step", "costs:step", "-o", f"out{MANY}")
            assert done.returncode == 0, done.stderr
            idle = api.take()

    # A task run for the shard, and three more.
    of_a_shard = OF_A_SHARD if runner else {}
    for cost in (few, many):
        assert len(cost.task_runs) == 4, cost.task_runs
        faults = more_calls("driver", cost, WITH_WORK) + more_calls("Ray worker", cost, of_a_shard)
        assert not faults, faults
        callers = {call.caller for call in cost.calls}
        expected = {"driver", "Ray worker"} if runner else {"driver"}
        assert callers == expected, "calls are not seen any more"

    # More inputs, no more calls; of bytes to Ray, not one for each input more: numbers and times
    # may have a digit more or less.
    more = [call for call in many.calls - few.calls if call.route not in AT_THE_END]
    assert not more, more
    if runner:
        # The shard alone is given to Ray.
        assert len(few.shipped) == len(many.shipped) == 1
        assert 0 < few.shipped[0] < MOST_BYTES
        assert many.shipped[0] - few.shipped[0] < MANY - FEW, f"{few.shipped}, {many.shipped}"
    else:
        assert few.shipped == many.shipped == []

    # How task runs ended is not waited for in vain, which would ask for twenty seconds.
    for cost in (few, many):
        assert cost.asked < 20, cost.asked

    # The same again has nothing to do, which Prefect need not know.
    assert not idle, idle
