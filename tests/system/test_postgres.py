"""A Prefect server with a Postgres database, set up as in docs/how-to/prefect-server.md."""

import re
import subprocess
import sys
from functools import partial

import pytest
from harness.live import ROOT, ask, flow_run_of, prefect_server_in, wait_for
from harness.postgres import postgres

SPLIT = "batchmill.steps.words:split"
PAGE = (ROOT / "docs" / "how-to" / "prefect-server.md").read_text()


@pytest.fixture(scope="module")
def database():
    """The database of the page, in a Postgres server for all tests of this module."""
    (sql,) = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    with postgres() as cluster:
        cluster.sql(sql)
        yield cluster


@pytest.fixture
def on_postgres(database, tmp_path):
    """A function that runs a Prefect server on the database, with the setting of the page."""
    (setting,) = re.findall(r"export (PREFECT_API_DATABASE_CONNECTION_URL=\S+)", PAGE)
    name, _, url = setting.replace("HOST:5432", database.address).partition("=")
    return partial(prefect_server_in, tmp_path / "server-home", environment={name: url})


@pytest.fixture
def prefect_server(on_postgres):
    with on_postgres() as url:
        yield url


def run_of(*options, output):
    return ["run", "words/manifest.csv", "--step", SPLIT, "-o", output, *options]


@pytest.fixture
def words_here(words, work):
    return words.rename(work / "words")


def test_runs_end_in_the_right_states(shell, api, database, words_here, work):
    done = shell.batchmill(*run_of(output="good"))
    assert done.returncode == 0, done.stderr
    run, tasks = flow_run_of(api, work / "good")
    assert (run["state"]["type"], run["state"]["message"]) == ("COMPLETED", "4 inputs: 4 ok")
    assert {task["state"]["type"] for task in tasks} == {"COMPLETED"}
    assert sum(task["name"].startswith("shard ") for task in tasks) >= 1
    of_run = {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}}
    assert {made["type"] for made in api("/artifacts/filter", of_run)} == {"progress", "markdown"}
    completed = run["id"]

    (words_here / "b.txt").write_bytes(b"\xff\xff")
    done = shell.batchmill(*run_of(output="bad"))
    assert done.returncode == 1, done.stderr
    run, tasks = flow_run_of(api, work / "bad")
    assert run["state"]["type"] == "FAILED"
    assert run["state"]["message"].startswith("4 inputs: 3 ok, 1 failed")
    assert {task["state"]["type"] for task in tasks} == {"COMPLETED"}

    # The runs are in Postgres, and there is no SQLite file.
    rows = database.sql("SELECT id, state_type FROM flow_run", "prefect").split()
    assert {f"{completed}|COMPLETED", f"{run['id']}|FAILED"} <= set(rows)
    assert not list(work.parent.rglob("prefect.db"))


@pytest.mark.long
def test_two_runs_at_once_are_both_recorded(shell, api, words_here, work):
    outputs = ["one", "two"]
    runs = [
        shell.start(
            sys.executable, "-m", "batchmill", *run_of("--batch-size", "1", output=output),
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )
        for output in outputs
    ]  # fmt: skip
    for process in runs:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    seen = [flow_run_of(api, work / output) for output in outputs]
    assert {run["state"]["type"] for run, _ in seen} == {"COMPLETED"}
    for _, tasks in seen:
        assert {task["state"]["type"] for task in tasks} == {"COMPLETED"}
        shards = [task["name"] for task in tasks if task["name"].startswith("shard ")]
        assert sum(int(name.split(", ")[1].split()[0]) for name in shards) == 4
    (first, second) = (run for run, _ in seen)
    assert max(first["start_time"], second["start_time"]) < min(
        first["end_time"], second["end_time"]
    ), "they did not overlap"


def test_a_restarted_server_has_the_history(bare_shell, on_postgres, words_here, work):
    with on_postgres() as url:
        bare_shell.environment["PREFECT_API_URL"] = url
        done = bare_shell.batchmill(*run_of(output="kept"))
        assert done.returncode == 0, done.stderr
        before = history(partial(ask, url), work / "kept")
    with on_postgres() as url:
        bare_shell.environment["PREFECT_API_URL"] = url
        api = partial(ask, url)
        assert history(api, work / "kept") == before
        assert [name for name, _ in before["tasks"] if name.startswith("shard ")]
        assert before["artifacts"] == ["markdown", "progress"]
        assert before["logs"] > 0
        # The next run is recorded as a new flow run.
        done = bare_shell.batchmill(*run_of(output="kept"), "--force")
        assert done.returncode == 0, done.stderr
        run, _ = flow_run_of(api, work / "kept")
        assert run["id"] != before["id"]
        assert run["state"]["type"] == "COMPLETED"


def history(api, dataset):
    """Wait for the logs of the latest run over a dataset; return what the server has of the run."""
    run, tasks = flow_run_of(api, dataset)
    of_run = {"flow_run_id": {"any_": [run["id"]]}}
    logs = wait_for(lambda: api("/logs/filter", {"logs": of_run}), "the run's logs")
    artifacts = api("/artifacts/filter", {"artifacts": of_run})
    return {
        "id": run["id"],
        "state": (run["state"]["type"], run["state"]["message"]),
        "tasks": sorted((task["name"], task["state"]["type"]) for task in tasks),
        "artifacts": sorted(made["type"] for made in artifacts),
        "logs": len(logs),
    }
