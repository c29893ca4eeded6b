"""Kill a run right before or after one of its changes to a dataset, and run it again.

The long version tests every change. The short version tests a sample.
"""

import os
import shutil
import signal
from functools import partial

import pytest
from harness.comparison import contents
from harness.comparison import faults as faults_of
from harness.crashing import CrashPoints, in_child
from harness.jobs import run_job
from harness.object_store import forget_connections

import batchmill.runs.run

# Imported once here, so that the child processes need not import it.
from batchmill import LedgerError
from batchmill.core.ledger import committer, lease
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.storage import LocalStore, is_url, open_store
from batchmill.datasets.maintenance.merging import with_merged_parts
from batchmill.runs import workers  # noqa: F401
from batchmill.runs.inputs import outputs  # noqa: F401

pytestmark = [pytest.mark.slow, pytest.mark.soak]

STEP = """
from pathlib import Path
def step(source, out):
    with open(Path(__file__).parent / "executed", "a") as file: file.write(source.name + "\\n")
    word = source.read_text()
    names = word.split()[1:] if word.startswith("names ") else ["0.txt", "1.txt"][: len(word)]
    for name, letter in zip(names, word):
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text(letter)
        yield {"output": name, "word": word}
"""


# The number of points that the short version tests per scenario, in a folder and in a bucket.
SAMPLE = 3
BUCKET_SAMPLE = 1
# On a slow machine, a run would commit more often and renew its lease, and have more points.
NEVER_SECONDS = 3600.0


class Place:
    """The folder with the inputs of one run, and the place of its dataset (folder or bucket)."""

    def __init__(self, folder, bucket=None):
        self.folder = folder
        self.dataset = f"{bucket}/{folder.name}" if bucket else str(folder / "out")


def prepare_inputs(place, scenario):
    """Write inputs and a manifest. Scenarios with a second run also make the first run here."""
    folder = place.folder
    folder.mkdir()
    (folder / "letters.py").write_text(STEP)
    (folder / "in").mkdir()
    if scenario == "packs":
        (folder / "packs").touch()
    names = ["a", "b", "c", "d"]
    for name in names:
        (folder / "in" / name).write_text(f"{name}xyz")
    write_manifest(folder, names)
    if scenario == "shapes":
        # A file becomes a folder, and a folder becomes a file.
        before = {"a": "names p q", "b": "names p/x q", "c": "names p/x q/y"}
        after = {"a": "names p/x q", "b": "names p r", "c": "names q"}
        for words in (before, after):
            for name, word in words.items():
                (folder / "in" / name).write_text(word)
            if words is before:
                assert in_child(lambda: run(place)) == 0
    if scenario in ("again", "packs"):
        assert in_child(lambda: run(place)) == 0
        (folder / "in" / "a").write_text("q")  # Now the step writes one output less.
        os.utime(folder / "in" / "d", (1, 1))
        (folder / "in" / "e").write_text("new")
        store = open_store(place.dataset)
        if scenario == "packs":
            store.remove(f"packs/{store.names('packs')[0]}")
        else:
            store.remove(next(name for name in store.files("files") if "-b-" in name))
        write_manifest(folder, ["a", "b", "d", "e"])
    (folder / "executed").unlink(missing_ok=True)


def copy(place, to):
    """Copy a prepared place. That is faster than preparing it again."""
    shutil.copytree(place.folder, to.folder)
    if is_url(to.dataset):
        forget_connections()
        store = open_store(to.dataset.rpartition("/")[0])
        for name in store.files("prepared"):
            store.copy(name, f"{to.folder.name}/{name.removeprefix('prepared/')}")


def write_manifest(folder, names):
    rows = "".join(f"in/{name},any\n" for name in names)
    (folder / "m.csv").write_text("input,kind\n" + rows)


def run(place, points=None, broken=None):
    """Make one run in the same way as the flow. Each run merges parts."""
    os.chdir(place.folder)
    forget_connections()
    batchmill.runs.run.with_merged_parts = partial(with_merged_parts, many=2)
    committer.COMMIT_SECONDS = lease.BEAT_SECONDS = lease.LAPSE_SECONDS = NEVER_SECONDS
    if broken:
        broken(points)
    if points:
        points.watch()
    job = ("m.csv", "letters:step", place.dataset)
    options = {"partition": "a=0.5,b=0.5", "stratify": "kind"}
    if (place.folder / "packs").exists():
        options["pack"] = "1MB"
    run_job(*job, prune=True, batch_size=1, num_workers=1, cores=1, options=options)


def recorded(dataset):
    """Return the run and the time of each recorded input."""
    ledger = Ledger(open_store(dataset))
    if not ledger.check_version():
        return {}
    rows = ledger.records(["input", "run", "finished_at"]).to_pylist()
    return {row["input"].removeprefix("in/"): (row["run"], row["finished_at"]) for row in rows}


def executed(folder):
    log = folder / "executed"
    return log.read_text().split() if log.exists() else []


@pytest.fixture
def crashes(tmp_path, sample):
    """Kill runs at a sample of points, run each again, and return the faults."""
    return partial(crash_at_points, tmp_path, sample)


def crash_at_points(tmp_path, sample, scenario, broken=None, bucket=None):
    prepared = Place(tmp_path / "prepared", bucket)
    prepare_inputs(prepared, scenario)
    counting = Place(tmp_path / "counting", bucket)
    copy(prepared, counting)
    points = CrashPoints(counting.dataset)
    assert in_child(lambda: run(counting, points, broken)) == 0
    # To count the changes does not disturb a run.
    undisturbed = counting
    if broken:
        undisturbed = Place(tmp_path / "undisturbed", bucket)
        copy(prepared, undisturbed)
        assert in_child(lambda: run(undisturbed)) == 0
    expected = contents(undisturbed.dataset)
    count = points.count
    faults = []
    assert count >= 20
    chosen = sample(range(1, count + 1), BUCKET_SAMPLE if bucket else SAMPLE)
    print(f"points {chosen} of {count}")
    for at in chosen:
        place = Place(tmp_path / f"{at}", bucket)
        folder = place.folder
        copy(prepared, place)
        before = recorded(place.dataset)
        points = CrashPoints(place.dataset, at)
        code = in_child(partial(run, place, points, broken))
        assert code == -signal.SIGKILL, at
        # The next run must not execute the inputs that this run recorded.
        after = recorded_or_torn(place.dataset)
        done = {name for name, record in after.items() if before.get(name) != record}
        earlier = executed(folder)
        if in_child(partial(run, place)) != 0:
            faults.append((at, "the second run failed"))
            continue
        if contents(place.dataset) != expected:
            faults.append((at, "the dataset differs"))
        if set(executed(folder)[len(earlier) :]) & done:
            faults.append((at, "committed, and executed again"))
        if faults_of(place.dataset):
            faults.append((at, faults_of(place.dataset)))
        shutil.rmtree(folder)
    return faults


def recorded_or_torn(dataset):
    try:
        return recorded(dataset)
    except LedgerError:
        return {}


@pytest.mark.parametrize("scenario", ["first", "again", "shapes", "packs"])
def test_a_run_that_is_killed_at_any_point_can_be_run_again(crashes, scenario):
    assert crashes(scenario) == []


@pytest.mark.parametrize("scenario", [pytest.param("first", marks=pytest.mark.long), "again"])
def test_a_run_in_a_bucket_that_is_killed_at_any_point_can_be_run_again(crashes, bucket, scenario):
    assert crashes(scenario, bucket=bucket) == []


@pytest.mark.parametrize("scenario", [pytest.param("first", marks=pytest.mark.long), "again"])
def test_a_run_in_a_bucket_of_google_that_is_killed_at_any_point_can_be_run_again(
    crashes, google_bucket, scenario
):
    assert crashes(scenario, bucket=google_bucket) == []


@pytest.mark.system
@pytest.mark.parametrize("scenario", [pytest.param("first", marks=pytest.mark.long), "again"])
def test_a_run_in_azure_that_is_killed_at_any_point_can_be_run_again(crashes, container, scenario):
    assert crashes(scenario, bucket=container) == []


def record_before_outputs(points):
    """Break the protocol: place an input's files only after its outcome is recorded."""
    waiting = []
    put = LocalStore.put_folder

    def later(store, staged, name, files):
        if waiting:
            put(*waiting.pop())
        aside = staged.with_name(staged.name + "-aside")
        os.rename(staged, aside)
        waiting.append((store, aside, name, files))

    LocalStore.put_folder = later


def write_in_place(points):
    """Break the protocol: write files under their final names, so they may be half-written."""

    def write_atomic(store, name, writer):
        target = store.root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb", buffering=0) as file:
            file.write(b"half of it")
            points.reach() if points else None
            file.seek(0)
            writer(file)
            file.truncate()

    LocalStore.write_atomic = write_atomic


@pytest.mark.long  # Only some of the points reveal the fault.
@pytest.mark.parametrize("broken", [record_before_outputs, write_in_place])
def test_a_broken_protocol_is_detected(crashes, broken):
    assert crashes("first", broken)
