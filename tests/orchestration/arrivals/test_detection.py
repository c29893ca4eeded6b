"""Files that arrive are announced at the right time. The tests simulate the clock."""

import pytest
from harness.jobs import run_job
from harness.live import STEP_MODULES
from harness.object_store import upload
from hypothesis import given
from hypothesis import strategies as st

from batchmill.core.ledger.open import open_ledger
from batchmill.errors import ManifestError
from batchmill.orchestration.arrivals.detection import (
    Arrivals,
    FileVersion,
    complete_files,
    list_files,
    new_or_changed,
    recorded_versions,
)

SETTLE = 10
EPOCH = 1_700_000_000  # Start of the simulated clock.


def mark(size, at=0.0, etag=None):
    """Return the version of a file that was last written at second `at` of the simulated clock."""
    return FileVersion(size, int((EPOCH + at) * 1e9), etag)


class Clock:
    """Passes listings to `Arrivals`, and records the announcements with their times."""

    def __init__(self, **options):
        self.arrivals = Arrivals(SETTLE, **{"local": True} | options)
        self.announced = []

    def see(self, at, **files):
        self.arrivals.update(files, at, EPOCH + at)
        batch = self.arrivals.due(at)
        if batch:
            self.arrivals.mark_announced(batch)
            self.announced.append((at, sorted(batch)))


def test_a_file_is_announced_once_when_it_has_not_changed_for_long_enough():
    clock = Clock()
    for at in range(40):
        clock.see(at, a=mark(1))
    assert clock.announced == [(SETTLE, ["a"])]


def test_a_half_copied_file_is_not_announced_before_it_is_complete():
    clock = Clock()
    for at in range(9):
        clock.see(at, a=mark(1))
    for at in range(9, 30):
        clock.see(at, a=mark(2, at=9))
    assert clock.announced == [(9 + SETTLE, ["a"])]


def test_a_change_that_keeps_the_size_restarts_the_wait():
    clock = Clock()
    clock.see(0, a=mark(1))
    clock.see(9, a=mark(1, at=9))
    clock.see(18, a=mark(1, at=9))
    assert clock.announced == []


def test_files_that_arrive_together_are_announced_together():
    clock = Clock()
    files = {}
    for at in range(60):
        if at < SETTLE:
            files[f"f{at}"] = mark(1, at=at)
        clock.see(at, **files)
    assert clock.announced == [(2 * SETTLE - 1, sorted(files))]


def test_a_file_that_never_stops_growing_does_not_delay_others():
    clock = Clock()
    for at in range(60):
        clock.see(at, a=mark(1), growing=mark(at, at=at))
    assert clock.announced == [(2 * SETTLE, ["a"])]


def test_a_file_that_is_renamed_into_place_is_complete_at_once():
    clock = Clock()
    clock.see(0, a=mark(1, at=-100))
    clock.see(1, a=mark(1, at=-100), b=mark(1, at=-50))
    assert clock.announced == [(0, ["a"]), (1, ["b"])]


def test_a_changed_file_is_announced_again():
    clock = Clock()
    clock.see(0, a=mark(1, at=-100))
    for at in range(5, 30):
        clock.see(at, a=mark(2, at=5))
    assert clock.announced == [(0, ["a"]), (5 + SETTLE, ["a"])]


def test_a_file_that_vanishes_and_returns_is_announced_again():
    """The run for the first announcement may have missed the file while it was away."""
    clock = Clock(known={"b": mark(1, at=-100)})
    clock.see(0, a=mark(1, at=-100), b=mark(1, at=-100))
    clock.see(1)
    for at in range(2, 40):
        clock.see(at, a=mark(1, at=-100), b=mark(1, at=-100))
    assert clock.announced == [(0, ["a"]), (2 + SETTLE, ["a", "b"])]


def test_a_file_that_some_listings_omit_is_announced_once():
    clock = Clock()
    for at in range(60):
        files = {"a": mark(1, at=-100)} if at % (SETTLE // 2) else {}
        clock.see(at, b=mark(1, at=-100), **files)
    assert clock.announced == [(0, ["b"]), (1, ["a"])]


def test_a_file_that_is_removed_before_it_is_complete_is_not_announced():
    clock = Clock()
    clock.see(0, a=mark(1))
    clock.see(5)
    clock.see(30)
    assert (clock.announced, clock.arrivals.waiting) == ([], 0)


def test_a_file_that_could_not_be_announced_stays_due():
    arrivals = Arrivals(SETTLE, local=True)
    arrivals.update({"a": mark(1, at=-100)}, 0, EPOCH)
    assert set(arrivals.due(0)) == {"a"}
    files = {"a": mark(1, at=-100), "b": mark(1, at=-99)}
    arrivals.update(files, 50, EPOCH + 50)
    batch = arrivals.due(50)
    assert set(batch) == {"a", "b"}
    # One of the files changes during the announcement.
    arrivals.update(files | {"b": mark(2, at=51)}, 51, EPOCH + 51)
    arrivals.mark_announced(batch)
    assert (arrivals.due(51), arrivals.waiting) == ({}, 1)


def test_a_file_with_a_time_in_the_near_future_waits_until_a_run_accepts_it():
    # A run skips a file whose time is this close to the current time, before or after it.
    clock = Clock()
    for at in range(60):
        clock.see(at, a=mark(1, at=25))
    assert clock.announced == [(25 + SETTLE, ["a"])]


def test_a_time_in_the_far_future_is_ignored():
    clock = Clock()
    for at in range(60):
        clock.see(at, a=mark(1, at=100_000))
    assert clock.announced == [(SETTLE, ["a"])]
    assert set(complete_files({"a": mark(1, at=100_000)}, SETTLE, EPOCH)) == {"a"}


def test_the_times_of_a_bucket_are_ignored():
    clock = Clock(local=False)
    for at in range(20):
        clock.see(at, a=FileVersion(1, 0, "etag"))
    assert clock.announced == [(SETTLE, ["a"])]


def test_known_files_are_not_announced():
    known = {
        "a": mark(1, at=-100),
        "b": mark(1, at=-100),
        "c": FileVersion(1, 0, "x"),
        "d": mark(1, 1),
    }
    clock = Clock(known=known, local=False)
    now = {"a": known["a"], "b": mark(2, at=-100), "c": FileVersion(1, 0, "y"), "d": mark(1, 2)}
    for at in range(20):
        clock.see(at, **now)
    assert clock.announced == [(SETTLE, ["b", "c", "d"])]


@given(
    writes=st.lists(st.tuples(st.integers(0, 60), st.sampled_from("abc")), min_size=1, max_size=25),
    step=st.integers(1, 7),
)
def test_each_last_version_is_announced_once_and_not_too_early(writes, step):
    """This is true for any sequence of writes."""
    clock = Clock()
    announced = []
    end = 60 + 3 * SETTLE
    for at in range(0, end + step, step):
        done = [(when, name) for when, name in writes if when <= at]
        seen = {name: mark(sum(n == name for _, n in done), max(w for w, n in done if n == name))
                for name in {name for _, name in done}}  # fmt: skip
        clock.arrivals.update(seen, at, EPOCH + at)
        batch = clock.arrivals.due(at)
        clock.arrivals.mark_announced(batch)
        for name, what in batch.items():
            written = max(when for when, n in done if n == name)
            assert at - written >= SETTLE
            announced.append((name, what))
    assert len(announced) == len(set(announced))
    last = {name: mark(sum(n == name for _, n in writes), max(w for w, n in writes if n == name))
            for _, name in writes}  # fmt: skip
    assert set(last.items()) <= set(announced)
    assert clock.arrivals.waiting == 0


def test_a_listing_contains_the_files_that_a_run_would_use(tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    assert list_files(str(source)) == {}
    for name in ("a.wav", "b.txt", ".hidden.wav"):
        (source / name).write_text(name)
    for folder in ("sub", ".git", "out/.batchmill"):
        (source / folder).mkdir(parents=True)
    (source / "sub" / "new\nline.wav").write_text("c")
    (source / ".git" / "d.wav").write_text("d")
    (source / "out" / "e.wav").write_text("e")
    seen = list_files(str(source), "*.wav")
    assert sorted(seen) == ["a.wav", "sub/new\nline.wav"]
    assert seen["a.wav"] == FileVersion(5, (source / "a.wav").stat().st_mtime_ns)
    with pytest.raises(ManifestError, match="no such folder"):
        list_files(str(tmp_path / "nosuch"))


def test_a_listing_of_a_bucket_may_be_empty(bucket, words):
    assert list_files(f"{bucket}/in") == {}
    upload(words, f"{bucket}/in")
    before = list_files(f"{bucket}/in", "*.txt")
    assert sorted(before) == ["a.txt", "b.txt", "c.txt", "d.txt"]
    (words / "a.txt").write_text("elpmis")
    upload(words, f"{bucket}/in")
    assert set(new_or_changed(list_files(f"{bucket}/in", "*.txt"), before)) == {"a.txt"}


def test_files_that_a_dataset_records_are_not_new(words, tmp_path, monkeypatch):
    monkeypatch.chdir(STEP_MODULES)
    run_job(words / "manifest.csv", "steps_under_test:fails_on_b", tmp_path / "out")
    known = recorded_versions(open_ledger(str(tmp_path / "out")))
    # The manifest itself is not an input of that run. Failed inputs are recorded as well.
    assert set(new_or_changed(list_files(str(words)), known)) == {"manifest.csv"}
    (words / "c.txt").write_text("another")
    (words / "e.txt").write_text("new")
    assert set(new_or_changed(list_files(str(words), "*.txt"), known)) == {"c.txt", "e.txt"}


def test_folders_of_a_run_over_folders_are_known(tmp_path):
    for name in ("a", "b"):
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "x").write_text("x")
    source, options = str(tmp_path / "in"), {"input_kind": "folder"}
    run_job(source, "steps_under_test:names", tmp_path / "out", options=options)
    known = recorded_versions(open_ledger(str(tmp_path / "out")))
    assert new_or_changed(list_files(source, folders=True), known) == {}
    (tmp_path / "in" / "b" / "y").write_text("y")
    (tmp_path / "in" / "c").mkdir()
    (tmp_path / "in" / "c" / "x").write_text("x")
    assert set(new_or_changed(list_files(source, folders=True), known)) == {"b", "c"}
    assert set(list_files(source, "c", folders=True)) == {"c"}
