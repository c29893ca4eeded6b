"""Test that a killed export resumes to the same bytes, and that an update writes few shards."""

import math
import os
import shutil
import signal
import sys
import tempfile
import threading

import pytest
from harness.crashing import in_child
from harness.exports import EveryStep, animals, export, files_of
from harness.jobs import run_job

from batchmill import OptionError, StoreError

# The number of points that the short version tests per format.
SAMPLE = 6
FORMATS = ["webdataset", "huggingface"]


@pytest.mark.slow
@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize(("earlier", "workers"), [(0, 1), (8, 1), (20, 1), (8, 2)])
def test_a_killed_export_resumes_to_the_same_bytes(
    tmp_path, monkeypatch, sample, to, earlier, workers
):
    """The export before the killed one had none, fewer or more samples.

    With two workers, the number of steps varies: the export may end before it is killed.
    """
    # The number of steps must not depend on scratch folders of other processes and on imports.
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    dataset = animals(tmp_path / "d", 12)
    export(dataset, tmp_path / "first", to)
    if earlier:
        other = animals(tmp_path / "other", earlier, 1800, content=lambda n: bytes([7 * n]) * 1800)
        export(other, tmp_path / "before", to)
    else:
        (tmp_path / "before").mkdir()
    undisturbed = shutil.copytree(tmp_path / "before", tmp_path / "undisturbed")
    points = EveryStep("")

    def run(out, watched):
        watched.watch()
        export(dataset, out, to, num_workers=workers)

    assert in_child(lambda: run(undisturbed, points)) == 0
    wanted = files_of(undisturbed)
    assert not [name for name in wanted if ".part-" in name or "begun" in name]
    ends = (-9,) if workers == 1 else (-9, 0)
    for at in sample(range(1, points.count + 1), SAMPLE):
        out = shutil.copytree(tmp_path / "before", tmp_path / f"at-{at}")
        assert in_child(lambda out=out, at=at: run(out, EveryStep("", at))) in ends
        export(dataset, out, to)
        assert files_of(out) == wanted, at


@pytest.mark.parametrize("to", FORMATS)
def test_the_same_export_again_writes_nothing(tmp_path, to):
    dataset, out = animals(tmp_path / "d"), tmp_path / "x"
    first = export(dataset, out, to)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert export(dataset, out, to).written == 0
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    assert first.written == len(first.shards)


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("shuffle", [None, 3])
def test_a_small_change_writes_few_shards(tmp_path, to, shuffle):
    """Another number of shards changes the names of shards, but these are copied."""
    out = tmp_path / "x"
    first = export(animals(tmp_path / "d", 120), out, to, shuffle=shuffle)
    changed = animals(tmp_path / "e", 121, content=lambda n: bytes([n + (n == 60)]) * 2000)
    second = export(changed, out, to, shuffle=shuffle)
    assert 1 <= second.written <= 10
    assert len(first.shards) >= 35
    undisturbed = tmp_path / "undisturbed"
    export(changed, undisturbed, to, shuffle=shuffle)
    assert files_of(out) == files_of(undisturbed)


@pytest.mark.parametrize("to", FORMATS)
def test_a_changed_row_is_exported_though_its_file_is_the_same(tmp_path, to):
    scores, out = [5] * 24, tmp_path / "x"
    export(animals(tmp_path / "d", score=scores), out, to)
    scores[11] = 6
    changed = animals(tmp_path / "e", score=scores)
    assert export(changed, out, to).written == 1
    export(changed, tmp_path / "undisturbed", to)
    assert files_of(out) == files_of(tmp_path / "undisturbed")


def test_shards_that_only_move_are_copied(tmp_path):
    """Without the first samples, each shard has a lower number. Then they return."""
    dataset, out = animals(tmp_path / "d", 120, number=list(range(120))), tmp_path / "x"
    export(dataset, out)
    for where in ("number >= 10", ""):
        assert 1 <= export(dataset, out, where=where).written <= 8
        one = tmp_path / f"one{len(where)}"
        export(dataset, one, where=where)
        assert files_of(out) == files_of(one)


def test_a_damaged_record_or_a_lost_shard_is_written_again(tmp_path):
    dataset, out = animals(tmp_path / "d"), tmp_path / "x"
    export(dataset, out)
    wanted = files_of(out)
    (out / ".batchmill-export" / "data-000001.tar.record").write_bytes(b"?")
    (out / "data-000002.tar").unlink()
    assert export(dataset, out).written == 2
    assert files_of(out) == wanted


def test_shuffling_changes_the_order_and_nothing_else(tmp_path):
    dataset = animals(tmp_path / "d")
    results = [
        export(dataset, tmp_path / f"{number}", shuffle=seed, shard_size=10**9)
        for number, seed in enumerate([None, 1, 1, 2])
    ]
    shards = [(tmp_path / str(n) / "data-000000.tar").read_bytes() for n in range(len(results))]
    assert shards[1] == shards[2]
    assert len(set(shards)) == 3
    assert len({len(shard) for shard in shards}) == 1


@pytest.mark.parametrize("to", FORMATS)
def test_any_number_of_workers_writes_the_same_bytes(tmp_path, to):
    dataset = animals(tmp_path / "d", 120)
    export(dataset, tmp_path / "one", to)
    for workers in (2, 7, None):
        export(dataset, tmp_path / f"{workers}", to, num_workers=workers)
        assert files_of(tmp_path / f"{workers}") == files_of(tmp_path / "one"), workers


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_changed_output_is_not_exported(words, tmp_path, num_workers):
    run_job(words / "manifest.csv", "steps_under_test:copy", tmp_path / "d")
    changed = sorted((tmp_path / "d" / "files").rglob("*.txt"))[1]
    changed.write_text("x" * changed.stat().st_size)
    with pytest.raises(StoreError, match=r"differs from what the run recorded.*verify --hash"):
        export(tmp_path / "d", tmp_path / "x", shard_size=1, num_workers=num_workers)


@pytest.mark.parametrize("how", ["Ctrl-C", "error"])
@pytest.mark.parametrize("opening", [1, 2], ids=["digest", "write"])
@pytest.mark.parametrize(("to", "workers"), [("webdataset", 1), ("huggingface", 3)])
def test_a_stopped_export_ends_at_once_and_resumes(
    tmp_path, monkeypatch, to, workers, opening, how
):
    """Ctrl-C comes when the file of a sample is opened, or the file is lost at that time."""
    dataset, out = animals(tmp_path / "d", 180), tmp_path / "x"
    options = {"num_workers": workers, "shard_size": 150_000}
    export(dataset, tmp_path / "undisturbed", to, **options)
    file, aside = dataset / "files" / "100.bin", tmp_path / "aside"
    opened, after, stops, late = [], [], [], []

    def make_stop():
        stops.append(threading.Event())
        return stops[-1]

    monkeypatch.setattr("batchmill.datasets.exporting.run_export.Event", make_stop)

    def watch(event, arguments):
        if event != "open" or not str(arguments[0]).endswith(".bin"):
            return
        opened.append(arguments[0])
        if opened.count(str(file)) < opening:
            return
        is_moment = str(arguments[0]) == str(file) and arguments[0] not in after
        after.append(arguments[0])
        if is_moment and how == "error":
            file.rename(aside)
            return  # The main thread learns of the error from this thread.
        if is_moment:
            os.kill(os.getpid(), signal.SIGINT)
        # The threads wait until the main thread has stopped them, however late that is.
        if not late and not stops[-1].wait(60):
            late.append(arguments[0])

    def run():
        sys.addaudithook(watch)
        with pytest.raises(KeyboardInterrupt if how == "Ctrl-C" else StoreError):
            export(dataset, out, to, **options)
        for thread in {*threading.enumerate()} - {threading.main_thread()}:
            if thread.ident is not None:  # Ctrl-C can come before a thread has started.
                thread.join()  # As Python does at the end.
        assert 0 < len(after) <= workers + 1, after  # Each thread ends before its next sample.
        assert late == []

    assert in_child(run) == 0
    assert [name for name in files_of(out) if ".part-" in name] == []
    if how == "error":
        aside.rename(file)
    export(dataset, out, to, **options)
    assert files_of(out) == files_of(tmp_path / "undisturbed")


def test_folders_with_other_files_are_refused(tmp_path):
    dataset = animals(tmp_path / "d")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a.txt").touch()
    export(dataset, tmp_path / "hf", "huggingface")
    for out, why in [
        (tmp_path / "full", "contains files, but no export"),
        (tmp_path / "full" / "a.txt", "is a file"),
        (dataset, "is a file or inside the dataset"),
        (dataset / "x", "inside the dataset"),
        (animals(tmp_path / "e"), "contains a dataset"),
        (tmp_path / "hf", "contains an export to huggingface"),
    ]:
        with pytest.raises(OptionError, match=why):
            export(dataset, out)


@pytest.mark.parametrize("other", [math.inf, -math.inf, None, 0.5])
def test_a_number_that_json_does_not_have_is_a_change(tmp_path, other):
    for value in (math.nan, other):
        dataset = animals(tmp_path / "d", count=4, peak=[1.0, 2.0, 3.0, value])
        export(dataset, tmp_path / "x", "huggingface")
    export(dataset, tmp_path / "y", "huggingface")
    assert files_of(tmp_path / "x" / "data") == files_of(tmp_path / "y" / "data")
