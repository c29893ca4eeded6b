"""The job of a dataset is recorded, and runs again."""

from pathlib import Path

import pandas as pd
import pytest
from harness.jobs import job_of, run_job, update

import batchmill
from batchmill import OptionError, RunError
from batchmill.api.jobs import run_job as jobs
from batchmill.api.jobs.idle_run import JobEnd
from batchmill.cli.main import main
from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.planning.recorded_job import recorded_job, upstream_first
from batchmill.runs.execute import InThisProcess, execute

pytestmark = pytest.mark.slow

COPY = (
    "def copy(source, out, *, times=1):\n"
    "    text = source.read_text() * times\n"
    "    if text.startswith('bad'):\n        raise ValueError(text)\n"
    "    (out / 'a.txt').write_text(text)\n"
    "    return {'output': 'a.txt', 'letters': len(text)}\n"
)


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A folder with a step and two inputs."""
    folder = tmp_path / "work"
    (folder / "in").mkdir(parents=True)
    (folder / "copying.py").write_text(COPY)
    for name in ("a.txt", "b.txt"):
        (folder / "in" / name).write_text("one")
    (folder / "in" / "c.bin").write_text("one")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def flows(monkeypatch):
    """Run the jobs of commands and calls in this process, without Prefect."""

    def run(request, prepared):
        number = prepared.ledger.runs()[-1] + 1
        summary = execute(prepared, InThisProcess()).summary
        error = None if summary.accepted(FailurePolicy()) else RunError("an input failed")
        return JobEnd(number, error)

    monkeypatch.setattr(jobs, "_execute", run)


def test_all_options_of_the_job_are_recorded(work, tmp_path, monkeypatch):
    given = {
        "pattern": "*.txt",
        "partition": "train=0.5,test=0.5",
        "batch_size": 1,
        "log_steps": "info",
        "retries": 3,
        "expect": ["letters < 9"],
    }
    policy = FailurePolicy(retries=3, expect=["letters < 9"])
    options = {name: given[name] for name in ("pattern", "partition", "log_steps")}
    run_job("in", "copying:copy", "out", batch_size=1, num_workers=1, force=True, times=2,
            policy=policy, options=options)  # fmt: skip
    expected = job_of(work / "in", "copying:copy", work / "out", num_workers=1, **given)
    monkeypatch.chdir(tmp_path)
    with recorded_job(str(work / "out")) as request:
        assert Path.cwd() == work  # The step is in a module there.
        assert (request.manifest, request.step) == (str(work / "in"), "copying:copy")
        assert (request.params, request.options) == ({"times": 2}, expected.options)
    assert Path.cwd() == tmp_path
    (work / "in" / "d.txt").write_text("four")
    assert update("work/out").executed == 1


def test_the_step_and_the_manifest_can_be_replaced_for_good(work):
    run_job("in", "copying:copy", "out")
    Path("in").rename("moved")
    Path("copying.py").rename("renamed.py")
    changes = {"manifest": "moved", "step": "renamed:copy", "root": "moved"}
    with recorded_job("out", **changes) as request:
        options = request.options.recorded() | {"replace_step": True}
        run_job(request.manifest, request.step, "out", options=options)
    assert update("out").executed == 0


def test_a_step_that_cannot_be_imported_has_to_be_given(work):
    run_job("in", lambda source: {"a": 1}, "out")
    with pytest.raises(OptionError, match=r"in no module .* --step MODULE:FUNCTION"):
        update("out")
    with recorded_job("out", step="copying:copy") as request:
        assert request.step == "copying:copy"


def test_the_manifest_can_be_replaced_by_a_table(work, flows):
    run_job("in", "copying:copy", "out")
    table = pd.DataFrame({"input": ["a.txt", "new.txt"]})
    (work / "in" / "new.txt").write_text("new")
    for _ in range(2):  # The table is recorded, too.
        result = batchmill.update("out", manifest=table, root="in")
        assert result.metadata["input"].tolist() == ["a.txt", "new.txt"]
        table = None


def test_the_chain_of_datasets_ends_at_a_version_that_the_manifest_names(work):
    run_job("in", "copying:copy", "one")
    run_job("one", "copying:copy", "two")
    batchmill.keep("two", 1, name="paper")
    run_job("two@paper", "copying:copy", "three")
    run_job("three", "copying:copy", "four")
    assert upstream_first("two") == [str(work / "one"), "two"]
    assert upstream_first("four") == [str(work / "three"), "four"]


def test_a_deep_update_begins_upstream_and_stops_at_a_failure(work, flows, capsys):
    run_job("in", "copying:copy", "one")
    run_job("one", "copying:copy", "two")
    (work / "in" / "a.txt").write_text("other")
    with pytest.raises(SystemExit) as end:
        main(["update", "two", "--deep", "--plan"])
    assert not end.value.code
    shown = capsys.readouterr()
    assert shown.out.count("1 changed: a.txt") == 1
    assert shown.err.splitlines() == [f"{work}/one:", f"{work}/two:"]
    result = batchmill.update("two", deep=True)
    assert (result.executed, result.metadata["letters"].tolist()) == (1, [5, 3, 3])
    assert batchmill.update("two", deep=True).executed == 0
    (work / "in" / "b.txt").write_text("bad")
    with pytest.raises(SystemExit) as end:
        main(["update", "two", "--deep"])
    assert end.value.code == 1
    assert f"{work}/two: not updated, because {work}/one failed." in capsys.readouterr().err
    assert len(batchmill.versions("two")) == 2


def test_the_graph_shows_what_each_dataset_is_made_of(work, capsys):
    run_job("in", "copying:copy", "one")
    run_job("one", "copying:copy", "two")
    run_job(f"{work}/two@1", "copying:copy", "three")
    (work / "in" / "a.txt").write_text("bad")
    run_job("in", "copying:copy", "one")
    with pytest.raises(SystemExit):
        main(["graph", "three"])
    shown = [line.split(" old, ")[-1] for line in capsys.readouterr().out.splitlines()]
    assert shown == [
        f"{work}/in",
        "3 rows, 1 failed input, copying:copy",
        f"3 rows, copying:copy; out of date: made of version 1, and {work}/one has 2",
        "3 rows, copying:copy",
    ]
    links = batchmill.graph("three")
    assert [(link.version, bool(link.out_of_date)) for link in links] == [
        (2, False),
        (1, True),
        (1, False),
    ]
    with pytest.raises(SystemExit):
        main(["graph", "three", "--mermaid"])
    diagram = capsys.readouterr().out
    assert diagram.startswith("graph TD\n")
    assert diagram.count(" --> ") == 3


@pytest.mark.parametrize("source", ["one", "one@1"])
def test_the_graph_begins_after_a_dataset_that_is_gone(work, source):
    run_job("in", "copying:copy", "one")
    run_job(work / source, "copying:copy", "two")
    run_job("two", "copying:copy", "three")
    (work / "one").rename("moved")
    two, three = batchmill.graph("three")
    assert (two.dataset, two.version, three.out_of_date) == (f"{work}/two", 1, "")
    assert two.out_of_date.startswith(f"{work}/one: there is no such folder")
    with pytest.raises(OptionError, match="there is no such folder"):
        batchmill.graph("one")
