"""New files: a watcher, a schedule or another program announces them, and a run processes them."""

import re
import signal
import time
from functools import partial

import pandas as pd
import pytest
from harness import gated
from harness.deployment import deploy, has_ended, worker_of
from harness.live import (
    ROOT,
    ask,
    clean_environment,
    free_ports,
    prefect_server_in,
    shell_in,
    wait_for,
)
from harness.object_store import upload
from harness.watcher import Watcher

from batchmill.orchestration.server.api import resource_id

ON_ARRIVAL = "preprocess/on-arrival"
LETTERS = {"step": "batchmill.steps.words:split", "params": {"num_chars": 1, "overlap": 0}}
MIN_AGE = 3


@pytest.fixture(scope="module")
def prefect_server(own_prefect_server):
    """A server only for these tests, because other workers must not run their deployments."""
    return own_prefect_server


@pytest.fixture(scope="module")
def deployments(prefect_server, s3, tmp_path_factory):
    """The deployments of prefect.yaml, with a worker that can run `slow:step` and use the store."""
    folder = tmp_path_factory.mktemp("worker")
    (folder / "slow.py").write_text(gated.STEP)
    environment = clean_environment(folder / "home") | {
        "PREFECT_API_URL": prefect_server,
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "PYTHONPATH": str(folder),
    }
    with shell_in(folder, environment | s3) as shell:
        made = deploy(shell, partial(ask, prefect_server), folder)
        with worker_of(shell):
            yield made


@pytest.fixture
def arrivals(deployments, shell, work):
    """The deployment `on-arrival` for the folder `in` and the dataset `out`."""
    (work / "in").mkdir()
    return Arrivals(deployments, shell, work / "in", work / "out")


class Arrivals:
    """The deployment `on-arrival` for one source and dataset, and its runs."""

    def __init__(self, deployments, shell, source, output, **parameters):
        self.deployments = deployments
        self.shell = shell
        self.source = str(source)
        self.output = str(output)
        made = LETTERS | {
            "output": self.output,
            "inputs": {"min_age": MIN_AGE},
            "run": {"wait": True},
        }
        deployments.set_parameters(ON_ARRIVAL, **made | parameters)

    def watch(self, *options):
        given = ["--min-age", MIN_AGE, *options]
        return Watcher(self.shell, self.source, "--deployment", ON_ARRIVAL, *map(str, given))

    def runs(self):
        """Return the flow runs over this dataset."""
        runs = self.deployments.runs(ON_ARRIVAL)
        return [run for run in runs if run["parameters"]["output"] == self.output]

    def states(self):
        """Return the names of the states of these runs."""
        return [run["state"]["name"] for run in self.runs()]

    def completed(self, count):
        """Wait until exactly `count` runs are Completed and no run is active; return them."""

        def ended():
            runs = self.runs()
            return len(runs) >= count and all(has_ended(run["state"]) for run in runs) and runs

        runs = wait_for(ended, f"the end of {count} runs", 240)
        assert [run["state"]["type"] for run in runs] == ["COMPLETED"] * count, runs
        return runs

    def letters(self):
        """Return the content of each input, from the rows of the dataset."""
        rows = pd.read_parquet(f"{self.output}/metadata.parquet")
        return rows.groupby("input")["part"].agg("".join).to_dict()


def test_many_files_cause_one_run_and_a_new_watcher_replaces_a_killed_one(arrivals, work):
    first = arrivals.watch("--every", "1")
    names = [f"many/{number}.txt" for number in range(100)]
    (work / "many").mkdir()
    for name in names:
        (work / name).write_text("x")
    # All files arrive at once. Otherwise a listing could find only some of them.
    (work / "many").rename(work / "in" / "many")
    (announced,) = first.wait(1)
    arrivals.completed(1)
    assert (announced["count"], announced["bytes"], len(announced["first"])) == (100, 100, 20)
    assert arrivals.letters() == dict.fromkeys(names, "x")
    assert len(first.announced()) == 1
    first.process.kill()
    first.process.wait()

    (work / "in" / "meanwhile.txt").write_text("b")
    second = arrivals.watch("--every", "1")
    (announced,) = second.wait(1)
    assert announced["first"] == ["meanwhile.txt"]
    arrivals.completed(2)
    assert arrivals.letters() == dict.fromkeys(names, "x") | {"meanwhile.txt": "b"}
    assert len(second.announced()) == 1
    assert second.stop() == 0


@pytest.mark.long
def test_the_first_message_says_which_files_are_announced(arrivals, work):
    watcher = arrivals.watch()
    expected = f"All existing files are announced: the dataset {work / 'out'} does not exist yet.\n"
    wait_for(lambda: expected in watcher.messages(), "the message about the dataset")
    assert "no deployment is named" not in watcher.messages()
    assert watcher.stop() == 0
    assert "Files that are not announced yet are announced at the next start." in watcher.messages()


def test_a_watcher_without_a_deployment_warns_that_nothing_may_run(bare_shell, work):
    bare_shell.environment["PREFECT_API_URL"] = f"http://127.0.0.1:{free_ports()[0]}/api"
    watcher = Watcher(bare_shell, ".")
    wait_for(lambda: "no deployment is named" in watcher.messages(), "the warning")
    (line,) = (line for line in watcher.messages().splitlines() if "no deployment" in line)
    assert f"batchmill.data.arrived of {resource_id('source', str(work))}." in line
    assert line.endswith("--deployment preprocess/on-arrival")
    assert watcher.stop() == 0


@pytest.mark.long
def test_an_incomplete_file_is_not_announced(arrivals, work):
    watcher = arrivals.watch()
    with (work / "in" / "slow.txt").open("w") as file:

        def write_until_announced():
            print("x", end="", file=file, flush=True)
            return watcher.announced()

        write_until_announced()
        (work / "in" / "whole.txt").write_text("whole")
        # When the other file is announced, this one exists for longer than the minimum age.
        (first,) = wait_for(write_until_announced, "the announcement of the complete file")
    assert first["first"] == ["whole.txt"]
    content = (work / "in" / "slow.txt").read_text()
    wait_for(lambda: sum(made["count"] for made in watcher.announced()) == 2, "both files")
    wait_for(lambda: arrivals.runs(), "a run")
    arrivals.completed(len(watcher.announced()))
    assert arrivals.letters() == {"slow.txt": content, "whole.txt": "whole"}
    # An incomplete file would have been announced twice.
    assert sum("slow.txt" in made["first"] for made in watcher.announced()) == 1
    assert watcher.stop(signal.SIGINT) == 0


@pytest.mark.long
def test_files_that_arrive_during_a_run_are_left_to_the_next_run(deployments, shell, work):
    (work / "in").mkdir()
    params = {"log": str(work / "out.log"), "go": str(work / "go")}
    arrivals = Arrivals(
        deployments, shell, work / "in", work / "out", step="slow:step", params=params
    )
    watcher = arrivals.watch("--every", "1")
    (work / "in" / "01.txt").write_text("1")
    wait_for(lambda: gated.executions(work, "out"), "the first execution", 120)
    (work / "in" / "02.txt").write_text("2")
    assert watcher.wait(2)[1]["first"] == ["02.txt"]
    wait_for(lambda: "Waiting" in arrivals.states(), "the wait of the second run")
    # The second run reads the source after the wait, so no other run needs to wait.
    (work / "in" / "03.txt").write_text("3")
    assert watcher.wait(3)[2]["first"] == ["03.txt"]
    wait_for(lambda: "Skipped" in arrivals.states(), "the end of the third run", 120)
    look = {"source": arrivals.source, "deployment": ON_ARRIVAL, "min_age": 0}
    state = deployments("watch-source/announce-files", **look)
    assert state["message"] == "3 new files; a run that is already scheduled will process them"
    (work / "go").touch()
    arrivals.completed(3)
    assert sorted(name for name, _ in gated.executions(work, "out")) == [
        "01.txt",
        "02.txt",
        "03.txt",
    ]
    assert watcher.stop() == 0


@pytest.mark.long
def test_an_event_is_sent_again_when_the_server_is_back(bare_shell, work, tmp_path):
    (port,) = free_ports()
    url = f"http://127.0.0.1:{port}/api"
    bare_shell.environment["PREFECT_API_URL"] = url
    (work / "in").mkdir()
    (work / "in" / "a.txt").write_text("a")
    watcher = Watcher(bare_shell, "in", "--min-age", "1")
    wait_for(lambda: "did not accept the event" in watcher.messages(), "the warning")
    assert watcher.announced() == []
    with prefect_server_in(tmp_path / "late-home", port=port):
        (announced,) = watcher.wait(1)
        arrived = {"filter": {"event": {"name": ["batchmill.data.arrived"]}}}
        found = wait_for(lambda: ask(url, "/events/filter", arrived)["events"], "the event")
        assert watcher.stop() == 0
    assert announced["first"] == ["a.txt"]
    assert [event["payload"]["source"] for event in found] == [str(work / "in")]
    # The warning is printed once.
    assert watcher.messages().count("did not accept the event") == 1


@pytest.mark.long
def test_the_scheduled_flow_announces_new_files_in_a_bucket(
    deployments, shell, bucket, words, work
):
    inputs = {"min_age": MIN_AGE, "pattern": "*.txt"}  # The folder also has a manifest.csv.
    arrivals = Arrivals(deployments, shell, f"{bucket}/in", f"{bucket}/out", inputs=inputs)
    look = {"source": arrivals.source, "deployment": ON_ARRIVAL}
    assert deployments("watch-source/announce-files", **look)["message"] == "nothing new"
    upload(words, arrivals.source)
    assert deployments("watch-source/announce-files", **look)["message"] == "4 new files announced"
    arrivals.completed(1)
    assert deployments("watch-source/announce-files", **look)["message"] == "nothing new"
    (words / "e.txt").write_text("new")
    upload(words, arrivals.source)
    state = deployments("watch-source/announce-files", **look | {"min_age": 0})
    assert state["message"] == "1 new file announced"
    arrivals.completed(2)
    state = deployments("watch-source/announce-files", **look | {"deployment": "nosuch/one"})
    assert state["type"] == "FAILED"
    assert ON_ARRIVAL in state["message"]


@pytest.mark.long
def test_the_documented_request_starts_a_run(arrivals, shell, work):
    (work / "in" / "a.txt").write_text("a")
    page = (ROOT / "docs" / "how-to" / "new-data.md").read_text()
    (request,) = (b for b in re.findall(r"```bash\n(.*?)```", page, re.DOTALL) if "curl" in b)
    assert "/data/recordings" in request
    wait_for(
        lambda: time.time() - (work / "in" / "a.txt").stat().st_mtime > MIN_AGE, "the minimum age"
    )
    done = shell.run("bash", "-euc", request.replace("/data/recordings", arrivals.source))
    assert done.returncode == 0, done.stderr
    arrivals.completed(1)
    assert arrivals.letters() == {"a.txt": "a"}
