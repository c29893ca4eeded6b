"""Test that old records and little used packs do not accumulate."""

import logging
import os
import signal
from functools import partial

import pytest
from harness.copying_job import CopyingJob
from harness.crashing import in_child
from harness.jobs import run_job
from harness.live import STEP_MODULES
from harness.object_store import begin_upload, incomplete_uploads
from harness.s3_proxy import Reply

from batchmill import StoreError, open_dataset
from batchmill.core.layout import MERGED, PACKS, PARTS, RELEASED
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.planning.prepare import prepare
from batchmill.core.storage import LocalStore, open_store
from batchmill.core.storage.addresses import Address
from batchmill.core.storage.pack_writer import encode_member
from batchmill.datasets.maintenance import packs
from batchmill.datasets.maintenance.cleanup import KEPT_RUNS, forget_runs, remove_orphans
from batchmill.datasets.maintenance.merging import with_merged_parts
from batchmill.datasets.maintenance.packs import rewrite_packs, unused_packs
from batchmill.datasets.maintenance.verify import verify
from batchmill.runs.progress import RunWatcher
from batchmill.runs.run import open_run

pytestmark = pytest.mark.slow


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return CopyingJob(tmp_path, 3)


def test_the_folders_of_old_runs_are_removed(job):
    job.run()
    for run in range(2, KEPT_RUNS + 3):
        job.ledger.control.record_flow_run(run, "a run before this one")
    assert job.run() == 0
    # That of the only version stays.
    assert job.ledger.runs() == [1, *range(4, KEPT_RUNS + 4)]
    assert list(verify(job.ledger)) == []
    assert job.run() == 0
    assert job.ledger.runs() == [1, *range(5, KEPT_RUNS + 5)]


def test_a_dataset_that_is_read_during_many_runs_stays_readable(job):
    job.run()
    opened = open_dataset(job.dataset)
    for number in range(3):
        job.path("00002.txt").write_text(f"version {number}")
        job.run()
        forget_runs(job.ledger, number + 2, kept=1)
        assert opened[0].data


@pytest.fixture
def merging(monkeypatch):
    """Each run merges all parts."""
    each_time = partial(with_merged_parts, many=1)
    monkeypatch.setattr("batchmill.runs.run.with_merged_parts", each_time)


def test_merged_parts_have_the_records_of_all_versions(job, merging):
    job.run()
    seen = {}
    for number in range(4):
        seen[number + 1] = results_of_version(job, number + 1)
        job.path("00001.txt").write_text(f"version {number}")
        os.utime(job.path("00000.txt"), (number, number))
        assert job.run(keep_versions=9) == 1
    assert {number: results_of_version(job, number) for number in seen} == seen
    versions = [version.number for version in job.ledger.snapshots.versions()]
    assert versions == [1, 2, 3, 4, 5]
    assert all(name.startswith(MERGED) for name in job.ledger.state().named_parts)
    own = job.ledger.files.read_state(job.ledger.snapshots.last()).named_parts
    assert own == job.ledger.state().named_parts
    assert job.run() == 0


def results_of_version(job, number):
    """Return the file, the run and the time of each input in a version, and its texts."""
    state = job.ledger.files.read_state(job.ledger.snapshots.find(number))
    records = state.records(["input", "run", "mtime_ns", "outputs"]).sort_by("input").to_pylist()
    return records, [sample.data for sample in open_dataset(job.dataset, version=number)]


def test_a_removed_input_does_not_come_back_when_its_records_are_merged(job, merging):
    job.run()
    job.names.remove("00001.txt")
    job.list()
    job.run(prune=True)
    assert len(job.ledger.records(["input"])) == 2
    before = open_dataset(job.dataset, version=1)
    assert [sample.data for sample in before if "00001" in sample.id] == ["00001.txt"]
    job.run(force=True)
    assert len(job.ledger.records(["input"])) == 2


def test_old_parts_do_not_accumulate(job):
    for times in range(1, 6):
        job.run(times=times, keep_versions=0)
    runs = {job.ledger.run_of(name) for name in job.ledger.part_names()}
    assert runs == {4, 5}, "a reader may have opened the last version before this one"
    assert [version.number for version in job.ledger.snapshots.versions()] == [5]


@pytest.mark.parametrize("keep_versions", [0, 1, 3])
def test_the_inputs_of_a_part_that_was_moved_away_run_again(job, keep_versions):
    """The message about a damaged part says so."""
    job.run()
    job.path("00001.txt").write_text("changed")
    job.run()
    (gone,) = job.ledger.part_names(2)
    (job.dataset / PARTS / gone).unlink()
    assert job.run(keep_versions=keep_versions) == 1
    assert list(verify(job.ledger, hash_files=True)) == []
    assert [sample.data for sample in open_dataset(job.dataset)][1] == "changed"
    assert job.run() == 0


def test_the_files_of_removed_inputs_are_removed_if_no_version_lists_them(job):
    job.run()
    output = job.output("00001.txt")
    job.names.remove("00001.txt")
    job.list()
    job.run()
    assert output.exists()
    job.run(prune=True, keep_versions=0)
    assert [version.number for version in job.ledger.snapshots.versions()] == [2]
    assert not output.exists()


def test_a_new_run_is_followed_after_old_ones_were_removed(job):
    for _ in range(3):
        job.run(force=True)
    watcher = RunWatcher(job.ledger)
    job.run(force=True)
    forget_runs(job.ledger, 4, kept=1)
    progress = watcher.poll()
    assert progress
    assert progress.total == 3


def test_a_first_run_that_another_one_overtakes_removes_its_leftovers(job, monkeypatch):
    """Both find no dataset. The other one gets the lease, leaves a file, and is killed."""
    prepared = prepare(job.job())
    stray = job.dataset / "files" / "a.0123456789ab" / "a.txt"

    def leave_a_file():
        with open_run(prepare(job.job())):
            stray.parent.mkdir(parents=True)
            stray.write_text("a")
            os.kill(os.getpid(), signal.SIGKILL)

    def create_and_pause(ledger):
        is_new = create(ledger)
        assert in_child(leave_a_file) == -signal.SIGKILL
        return is_new

    create = Ledger.create
    with monkeypatch.context() as patch:
        patch.setattr(prepared.ledger, "create", partial(create_and_pause, prepared.ledger))
        with open_run(prepared):
            assert not stray.exists()
    job.run()
    assert list(verify(job.ledger)) == []


def test_a_request_to_retry_is_removed_when_it_was_executed(job):
    job.run()
    job.ledger.release(["in/00000.txt", "in/00001.txt"])
    job.ledger.release(["in/00002.txt"])
    job.names.remove("00002.txt")
    job.list()
    assert job.run() == 2
    assert list(job.ledger.released()) == ["in/00002.txt"], "it was not executed"
    before = job.ledger.snapshots.last()
    job.names.append("00002.txt")
    job.list()
    assert job.run() == 1
    assert job.ledger.store.names(RELEASED) == []
    assert job.ledger.snapshots.last() != before
    assert job.run() == 0


@pytest.mark.end_to_end
@pytest.mark.parametrize("place", ["/made", ""])
def test_the_parts_that_a_killed_upload_left_in_a_bucket_are_removed(bucket, place):
    """They cost money, and no listing of files shows them."""
    ledger = Ledger(open_store(f"{bucket}{place}"))
    for name in ("files/a/large.bin", "packs/1.tar", "metadata.parquet"):
        begin_upload(f"{bucket}{place}/{name}")
    begin_upload(f"{bucket}/made-elsewhere/files/large.bin")
    remove_orphans(ledger)
    assert incomplete_uploads(bucket) == ["made-elsewhere/files/large.bin"]


@pytest.mark.end_to_end
def test_a_run_removes_the_parts_that_its_killed_worker_left(bucket, tmp_path, monkeypatch):
    monkeypatch.chdir(STEP_MODULES)
    (tmp_path / "in").mkdir()
    for name in "abc":
        (tmp_path / "in" / f"{name}.txt").write_text(name)
    begin_upload(f"{bucket}/made/files/a/large.bin")
    done = run_job(
        tmp_path / "in",
        "steps_under_test:die_once",
        f"{bucket}/made",
        num_workers=1,
        died=str(tmp_path / "died"),
    )
    assert done.outcomes == {"ok": 3}
    assert (tmp_path / "died").exists()
    assert incomplete_uploads(bucket) == []


@pytest.mark.end_to_end
def test_a_store_that_denies_the_list_of_uploads_changes_nothing_else(proxied, bucket, caplog):
    def deny(request):
        return (
            Reply(403, b"<Error><Code>AccessDenied</Code></Error>")
            if "uploads" in request.query
            else None
        )

    with proxied(deny), caplog.at_level(logging.INFO):
        remove_orphans(Ledger(open_store(f"{bucket}/made")))
    assert "The parts of incomplete uploads stay in the bucket" in caplog.text
    assert "access denied" in caplog.text


def write_pack(store, name, paths):
    """Write a pack with a file at each path. Return the path of each file by its address."""
    addresses, data = {}, b""
    for path in paths:
        content = path.encode() * 40
        header, member = encode_member(path, content)
        place = Address(name, len(data) + header, len(content))
        addresses[place.named(path)] = path
        data += member
    store.write(name, data)
    return addresses


def test_files_that_stay_where_they_are_keep_their_address(tmp_path, monkeypatch):
    """An old pack was moved to several new ones. Later, only one of these is written again."""
    monkeypatch.setattr(packs, "_JOINED_BYTES", 4000)
    store = LocalStore(tmp_path)
    used = write_pack(store, f"{PACKS}/000001-a-0.tar", [f"files/a/{n:02}" for n in range(20)])
    for kept in (9, 7, 6, 5):
        # The first files are in the first new pack. Some of them are no longer used.
        used = dict(list(used.items())[-kept:])
        rewrite_packs(store, used)
        fresh = LocalStore(tmp_path)
        for address, path in used.items():
            assert fresh.read(address) == path.encode() * 40, kept
    assert len(store.names(PACKS)) >= 3


@pytest.mark.parametrize(
    ("kept", "is_rewritten"), [((1, 3, 5, 7), False), ((0, 1, 2), True), ((7,), True)]
)
def test_packs_are_joined_if_less_than_half_of_them_is_used(tmp_path, kept, is_rewritten):
    store, used = LocalStore(tmp_path), {}
    for number in range(2):
        paths = [f"files/{number}{place}/x" for place in range(8)]
        places = list(write_pack(store, f"{PACKS}/{number}.tar", paths).items())
        used |= dict(places[place] for place in kept)
    rewrite_packs(store, used)
    assert all(LocalStore(tmp_path).read(at) == path.encode() * 40 for at, path in used.items())
    names = store.names(PACKS)
    assert (names == ["0.tar", "1.tar"]) != is_rewritten
    assert len(names) == (3 if is_rewritten else 2), "one new pack, and the lists that lead to it"
    assert unused_packs(store, used) == []
    assert unused_packs(store, []) == [f"{PACKS}/{name}" for name in names]


def test_a_reader_of_a_version_that_was_removed_meanwhile_gets_an_error(job):
    job.run()
    ledger = Ledger(LocalStore(job.dataset))
    version = ledger.snapshots.find(1)
    assert len(ledger.files.read_state(version)) == 3
    for times in range(2, 5):
        job.run(times=times, keep_versions=0)
    with pytest.raises(StoreError, match="A run has removed version 1 meanwhile"):
        ledger.files.read_state(version)
