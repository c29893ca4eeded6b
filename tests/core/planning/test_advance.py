"""The state that a run leaves: what it keeps, changes and removes of the state before it."""

import os
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from harness.copying_job import CopyingJob

import batchmill
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.parts import PART_SCHEMA, Origin
from batchmill.core.ledger.snapshots import Snapshot
from batchmill.core.ledger.state import State, as_shown
from batchmill.core.manifest import Manifest
from batchmill.core.options.job_options import RunOptions
from batchmill.core.outcome import Outcome
from batchmill.core.planning.advance import advance
from batchmill.core.planning.changed_files import FileChanges
from batchmill.core.planning.decisions import Criteria
from batchmill.core.planning.plan import PLANNED_COLUMNS, make_plan, match_records
from batchmill.core.storage import LocalStore
from batchmill.datasets.maintenance.verify import examine
from batchmill.datasets.maintenance.versions import keep_version

pytestmark = pytest.mark.slow

SHOWN = ("outcome", "run", "rows", "result_run", "absence", "attempts")
ALL = [*PART_SCHEMA.names, "result_run", "absence"]


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger(LocalStore(tmp_path))
    ledger.create()
    return ledger


def commit(ledger, run, **kinds):
    """Commit the outcomes of a run, and return them. The rows of an `ok` input have the run."""
    records = []
    for name, kind in kinds.items():
        seen = {"size": 5, "mtime_ns": 1, "ctime_ns": 3, "content": "c"}
        if kind == "ok":
            seen["rows"] = f'[{{"run":{run}}}]'
        else:
            seen |= {"message": f"{name} was not ok", "traceback": "in the step"}
        outcome = Outcome(name, name, kind, 1, 0.5, 1.0, "host", **seen)
        records.append((outcome, Origin("{}", "s", run)))
    ledger.commit(f"{run:06d}-a-0", records)
    return ledger.outcomes(run)


def manifest_of(*names, gone=(), mtime_ns=1):
    """Return a manifest. There is no file of the inputs that are `gone`."""
    count = len(names)
    inputs = pa.table(
        {
            "input": pa.array(names, pa.string()),
            "size": pa.array([-1 if name in gone else 5 for name in names], pa.int64()),
            "mtime_ns": [mtime_ns] * count,
            "etag": pa.nulls(count, pa.string()),
            "ctime_ns": pa.array([3] * count, pa.int64()),
            "companions": pa.nulls(count, pa.string()),
        }
    )
    return Manifest(name="m.csv", root="/data", inputs=inputs, manifest_columns=pa.table({}))


def advanced(state, manifest, outcomes=None, step="s", adopted=(), changes=None, **options):
    """Plan a run over a manifest, and return the state that it leaves."""
    before = state.table
    criteria = Criteria(step, adopted_steps=adopted, changes=changes or FileChanges())
    matched = match_records(state.records(PLANNED_COLUMNS), manifest.inputs)
    plan = make_plan(manifest, matched, criteria)
    after = advance(state, plan, manifest, outcomes, RunOptions(**options), step)
    assert state.table.equals(before), "a state never changes"
    return after


def seen(state, *names):
    """Return some values of each input by its name."""
    columns = names or SHOWN
    records = state.records(["input", *columns]).sort_by("input").to_pylist()
    return {one["input"]: tuple(one[name] for name in columns) for one in records}


def test_without_a_change_the_state_is_the_same_object(ledger):
    commit(ledger, 1, a="ok", b="failed")
    state = ledger.state()
    assert advanced(state, manifest_of("a", "b")) is state
    assert advanced(state, manifest_of("a", "b"), prune=True, prune_failed=True).table.equals(
        state.table
    )


def test_an_input_that_is_not_ok_keeps_its_last_result(ledger):
    manifest, first, fourth = manifest_of("a", "b"), '[{"run":1}]', '[{"run":4}]'
    state = advanced(State(ledger.store), manifest, commit(ledger, 1, a="ok", b="failed"))
    never = ("failed", 1, "[]", None, None, 1)
    assert seen(state) == {"a": ("ok", 1, first, None, None, 1), "b": never}
    for run, kind in ((2, "failed"), (3, "crashed")):
        state = advanced(state, manifest, commit(ledger, run, a=kind))
        assert seen(state) == {"a": (kind, run, first, 1, None, 1), "b": never}
    state = advanced(state, manifest, commit(ledger, 4, a="ok"))
    assert seen(state) == {"a": ("ok", 4, fourth, None, None, 1), "b": never}


def test_an_input_whose_file_vanished_during_the_run_keeps_its_outcome(ledger):
    commit(ledger, 1, a="ok", b="ok")
    commit(ledger, 2, b="failed")
    state = ledger.state()
    now = commit(ledger, 3, a="missing", b="missing", c="missing", d="ok")
    state = advanced(state, manifest_of("a", "b", "c", "d"), now)
    first = '[{"run":1}]'
    assert seen(state) == {
        "a": ("ok", 3, first, None, "missing", 0),
        "b": ("failed", 3, first, 1, "missing", 0),
        "c": ("missing", 3, "[]", None, None, 1),
        "d": ("ok", 3, '[{"run":3}]', None, None, 1),
    }
    messages = {name: (f"{name} was not ok",) for name in "abc"} | {"d": ("",)}
    assert seen(state, "message") == messages
    back = manifest_of("a", "b", "c", "d")
    matched = match_records(state.records(PLANNED_COLUMNS), back.inputs)
    assert make_plan(back, matched, Criteria("s")).first("changed", 9) == ["b"]
    state = advanced(state, back)
    assert seen(state)["a"] == ("ok", 3, first, None, None, 0), "the file is there again"
    assert seen(state, "message") == messages | {"a": ("",)}


def test_new_times_of_unchanged_inputs_are_recorded(ledger):
    commit(ledger, 1, a="ok", b="failed", c="ok")
    state, now = ledger.state(), manifest_of("a", "b", mtime_ns=7)
    same = FileChanges(contents=pa.chunked_array([["c", "other"]]))
    state = advanced(state, now, changes=same)
    assert seen(state, "mtime_ns") == {"a": (7,), "b": (1,), "c": (1,)}
    assert seen(state, "outcome", "run")["a"] == ("ok", 1)


def test_only_adopted_results_get_the_step_of_the_run(ledger):
    commit(ledger, 1, a="ok", b="failed")
    state = advanced(ledger.state(), manifest_of("a", "b"), step="new", adopted=["s"])
    assert seen(state, "step", "run") == {"a": ("new", 1), "b": ("s", 1)}


def test_a_web_server_that_does_not_respond_may_have_the_file(ledger):
    name = "https://host/a"
    commit(ledger, 1, **{name: "ok"})
    state = advanced(ledger.state(), manifest_of(name, gone=[name]))
    message = f"{name}: no such file, or its server does not respond."
    assert seen(state, "absence", "message") == {name: ("missing", message)}


def test_an_absence_is_recorded_until_the_input_is_there_again(ledger):
    commit(ledger, 1, a="ok", b="ok", c="failed")
    state = advanced(ledger.state(), manifest_of("a", gone=["a"]))
    missing = ("missing", "/data/a: no such file.")
    failed = "c was not ok"
    columns = ("absence", "message")
    withdrawn = {"b": ("withdrawn", ""), "c": ("withdrawn", failed)}
    assert seen(state, *columns) == {"a": missing, **withdrawn}
    assert state.listed().names.to_pylist() == ["a"]
    assert advanced(state, manifest_of("a", gone=["a"])) is state
    state = advanced(state, manifest_of("a", "b"))
    assert seen(state, *columns) == {"a": (None, ""), "b": (None, ""), "c": ("withdrawn", failed)}
    state = advanced(state, manifest_of("a", "b", "c"))
    assert seen(state, *columns)["c"] == (None, failed)
    assert seen(state, "outcome") == {"a": ("ok",), "b": ("ok",), "c": ("failed",)}


def test_a_failed_input_with_an_earlier_result_may_be_missing(ledger):
    commit(ledger, 1, a="ok", b="failed")
    commit(ledger, 2, a="failed")
    manifest = manifest_of("a", "b", gone=["a"])
    state = advanced(ledger.state(), manifest, prune_failed=True)
    assert seen(state)["a"] == ("failed", 2, '[{"run":1}]', 1, "missing", 1)
    columns = ["outcome", "message", "traceback", "result_run", "run", "attempts", "absence"]
    shown = as_shown(state.of(pa.array(["a"])).records(columns)).to_pylist()[0]
    stays = "/data/a: no such file. Its earlier result stays in the dataset."
    assert shown | {"outcome": "missing", "message": stays, "traceback": ""} == shown
    state = advanced(state, manifest_of("a", "b"), prune_failed=True)
    assert seen(state)["a"] == ("failed", 2, "[]", None, None, 1)


def test_only_prune_removes_withdrawn_inputs(ledger):
    commit(ledger, 1, a="ok", b="ok", c="failed")
    state = advanced(ledger.state(), manifest_of("a", gone=["a"]), prune=True)
    assert seen(state, "absence") == {"a": ("missing",)}
    now = commit(ledger, 2, b="ok")
    state = advanced(state, manifest_of("b"), now, prune=True)
    assert seen(state) == {"b": ("ok", 2, '[{"run":2}]', None, None, 1)}


def test_prune_failed_keeps_the_results_of_ok_inputs_and_of_those_that_still_wait(ledger):
    commit(ledger, 1, **dict.fromkeys("abcdef", "ok"))
    commit(ledger, 2, b="failed", c="failed")
    state = ledger.state()
    # The files of c and d have changed. The run has executed only d, e and f.
    changes = FileChanges(contents=pa.chunked_array([["c", "c", "other", "other", None, None]]))
    now = commit(ledger, 3, d="failed", e="missing", f="ok")
    manifest = manifest_of(*"abcdef", mtime_ns=2)
    state = advanced(state, manifest, now, changes=changes, prune_failed=True)
    rows = {name: (outcome, rows) for name, (outcome, _, rows, *_) in seen(state).items()}
    first = '[{"run":1}]'
    assert rows == {
        "a": ("ok", first),
        "b": ("failed", "[]"),
        "c": ("failed", first),
        "d": ("failed", "[]"),
        "e": ("ok", first),
        "f": ("ok", '[{"run":3}]'),
    }
    assert seen(state, "run")["b"] == (2,), "a request to retry it still counts"


def test_the_outcomes_of_killed_runs_count_without_a_snapshot(ledger):
    manifest = manifest_of("a", "b", "c")
    state = advanced(State(ledger.store), manifest, commit(ledger, 1, a="ok", b="ok"))
    state = state.changed(pa.array(["b"]), absence="withdrawn")
    record(ledger, 1, state)
    assert seen(ledger.state()) == seen(state)
    commit(ledger, 2, a="failed", c="ok")
    commit(ledger, 3, a="crashed")
    found = ledger.state()
    assert found.file is None, "no snapshot has this state"
    assert seen(found) == {
        "a": ("crashed", 3, '[{"run":1}]', 1, None, 1),
        "b": ("ok", 1, '[{"run":1}]', None, "withdrawn", 1),
        "c": ("ok", 2, '[{"run":2}]', None, None, 1),
    }
    record(ledger, 4, found)
    assert ledger.state().records(ALL).sort_by("input") == found.records(ALL).sort_by("input")


def record(ledger, run, state):
    """Record a snapshot with a state."""
    more = {"created": 1.0, "shown": 0, "step": "s", "settings": {}, "made_of": ""}
    written = ledger.files.write_state(run, state).file
    ledger.snapshots.record(Snapshot(number=run, state=written, **more))


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return CopyingJob(tmp_path, 4)


def test_an_earlier_result_is_removed_in_the_run_in_which_its_input_fails(job):
    bad = job.path("00001.txt")
    for turn in range(3):
        bad.write_text(f"good {turn}")
        job.run()
        bad.write_bytes(b"\xff")
        job.run(prune_failed=True)
        rows = pd.read_parquet(job.dataset / "metadata.parquet")
        assert "in/00001.txt" not in set(rows["input"])
        records = job.ledger.state().of(pa.array(["in/00001.txt"])).records(["outcome", "rows"])
        assert records.to_pylist() == [{"outcome": "failed", "rows": "[]"}]


def test_an_input_that_waits_for_a_retry_keeps_its_result_and_its_turn(job):
    job.run()
    for name in ("00000.txt", "00001.txt"):
        job.path(name).write_bytes(b"\xff")
    job.run()
    batchmill.retry(job.dataset)
    job.run(prune_failed=True, options={"sample": 1})
    assert (job.summary.executed, job.summary.outcomes["failed"]) == (1, 1)
    assert job.reasons() == {"unchanged": 2, "quarantined": 1, "retry": 1}
    assert len(pd.read_parquet(job.dataset / "metadata.parquet")) == 3


def test_all_changes_of_a_run_are_in_one_state(job):
    job.run()
    job.path("00000.txt").touch()
    job.path("00001.txt").write_bytes(b"\xff")
    job.names.remove("00002.txt")
    job.list()
    job.run(prune=True, prune_failed=True)
    assert job.ledger.snapshots.last().number == 2
    state = job.ledger.files.read_state(job.ledger.snapshots.last())
    assert sorted(state.names.to_pylist()) == ["in/00000.txt", "in/00001.txt", "in/00003.txt"]
    assert job.reasons() == {"unchanged": 2, "quarantined": 1}
    assert not len(job.plan().plan.touched), "the new time is recorded"


def test_each_state_of_an_input_is_recorded_once(job):
    job.run()
    job.path("00003.txt").write_bytes(b"\xff")
    job.run()
    missing = f"{job.path('00001.txt')}: no such file."
    failed = states_of(job)[3]
    assert failed[1]

    def list_only(*names):
        job.names = list(names)
        job.list()

    everything = tuple(job.names)
    for change, second, last in (
        (lambda: os.utime(job.path("00000.txt"), (1, 1)), (None, ""), failed),
        (lambda: job.path("00001.txt").rename("away"), ("missing", missing), failed),
        (lambda: list_only(*everything[:2]), ("missing", missing), ("withdrawn", failed[1])),
        (lambda: Path("away").rename(job.path("00001.txt")), (None, ""), ("withdrawn", failed[1])),
        (lambda: list_only(*everything), (None, ""), failed),
    ):
        change()
        job.run()
        assert states_of(job)[0] == (None, "")
        assert (states_of(job)[1], states_of(job)[3]) == (second, last)
        changes = job.ledger.changes()
        job.run()
        assert job.ledger.changes() == changes, "nothing has changed since"
    times = job.ledger.records(["input", "mtime_ns"]).sort_by("input")["mtime_ns"]
    assert times[0].as_py() == 10**9


def states_of(job):
    """Return the absence and the message of each input, in the order of their names."""
    records = job.ledger.records(["input", "absence", "message"]).sort_by("input").to_pydict()
    return list(zip(records["absence"], records["message"], strict=True))


@pytest.mark.parametrize("options", [{}, {"pack": "1MB"}], ids=["files", "packs"])
def test_a_version_names_no_file_of_an_input_that_its_manifest_did_not_list(job, options):
    job.run(options=options)
    job.names.remove("00002.txt")
    job.list()
    job.path("00000.txt").write_text("changed")
    job.run(options=options)
    keep_version(job.ledger, 2, "v")
    job.run(options=options, prune=True, keep_versions=0)
    assert examine(job.ledger, version="v", hash_files=True) == []
    assert examine(job.ledger, hash_files=True) == []
    assert "in/00002.txt" not in job.ledger.records(["input"])["input"].to_pylist()
    # A pack may contain only the output of the input that is not listed.
    files = (job.dataset / "packs").iterdir() if options else [job.output("00003.txt")]
    for path in list(files):
        path.unlink()
    assert {found.kind for found in examine(job.ledger, version="v")} == {"missing"}
