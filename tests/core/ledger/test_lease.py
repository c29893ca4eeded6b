"""A dataset has one writer, even if processes or machines fail."""

import json
import math
import os
import socket
import threading
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from harness.contention import FORK, at_once
from harness.live import wait_for

from batchmill import LedgerError, StoreError
from batchmill.core.ledger import lease as leases
from batchmill.core.ledger import lease_files
from batchmill.core.ledger.lease import Wait, check_free, holder, lease
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.storage import LocalStore, open_store

FOLDER = ".batchmill/lease"
CONTENDERS = 8


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.end_to_end)])
def ledger(request, tmp_path):
    is_folder = request.param == "folder"
    place = str(tmp_path) if is_folder else f"{request.getfixturevalue('bucket')}/dataset"
    ledger = Ledger(open_store(place))
    ledger.create()
    return ledger


@pytest.fixture
def quick(monkeypatch):
    """Shorten all times, so that the tests are fast."""
    monkeypatch.setattr(leases, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(leases, "LAPSE_SECONDS", 0.5)
    monkeypatch.setattr(leases, "_WAIT_SECONDS", 0.05)
    monkeypatch.setattr(leases, "_POLL_SECONDS", 0.05)
    monkeypatch.setattr(lease_files, "_READ_AGAIN_SECONDS", 0.01)


class Clock:
    """The clocks of this process. They advance only when a test says so, or during a `sleep`.

    The machine seems to be suspended when `seconds` advance: the monotonic clock does not.
    """

    def __init__(self):
        self.seconds = 1_000_000.0

    def time(self):
        return self.seconds

    def clock_gettime(self, clock):
        return {time.CLOCK_BOOTTIME: self.seconds}.get(clock, 0.0)

    def monotonic(self):
        return 0.0

    def sleep(self, seconds):
        self.seconds += seconds


@pytest.fixture
def clock(monkeypatch):
    """The clock of the leases of this process."""
    clock = Clock()
    fakes = {name: getattr(clock, name) for name in vars(Clock) if not name.startswith("_")}
    monkeypatch.setattr(leases, "time", SimpleNamespace(**vars(time) | fakes))
    return clock


class HookedStore(LocalStore):
    """A folder that calls `before_write` before it writes a file."""

    def __init__(self, folder):
        super().__init__(folder)
        self.before_write = lambda: None

    def write(self, name, data):
        self.before_write()
        super().write(name, data)


@pytest.fixture
def lease_store(tmp_path, monkeypatch):
    """The store in which the holder of a lease writes its heartbeats."""
    store = HookedStore(str(tmp_path))
    monkeypatch.setattr(leases, "open_store", lambda _: store)
    return store


@pytest.fixture
def held(tmp_path, clock, lease_store, monkeypatch):
    """A lease of this process. Its thread sends no heartbeats."""
    monkeypatch.setattr(leases, "BEAT_SECONDS", 3600)
    ledger = Ledger(LocalStore(str(tmp_path)))
    ledger.create()
    with lease(ledger) as held:
        yield held
        lease_store.before_write = lambda: None


def lease_of_another_machine(ledger, *, age, number=3, **changes):
    """Write a lease as a process on another machine would write it."""
    fields = {
        "number": number,
        "token": "another",
        "host": "far-away",
        "machine": "another boot",
        "pid": 4711,
        "started": "1",
        "since": leases.time.time() - age,
        "beat": leases.time.time() - age,
        "ended": False,
    }
    ledger.store.write(f"{FOLDER}/{number:06d}.json", json.dumps(fields | changes).encode())


def test_the_holder_is_named_and_excludes_other_writers(ledger):
    with lease(ledger):
        who = f"process {os.getpid()} on {socket.gethostname()}, since "
        assert holder(ledger).startswith(who)
        with pytest.raises(LedgerError, match=who), lease(ledger):
            pass
    assert holder(ledger) is None
    with lease(ledger):
        pass


def test_the_lease_of_a_dead_process_is_free(ledger):
    pid = os.fork()
    if pid == 0:
        held = lease(ledger)  # Without a reference, the generator would end and release the lease.
        held.__enter__()
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    (name,) = ledger.store.names(FOLDER)
    assert not json.loads(ledger.store.read(f"{FOLDER}/{name}"))["ended"]
    assert holder(ledger) is None
    with lease(ledger):
        assert str(os.getpid()) in holder(ledger)
    assert ledger.store.names(FOLDER) == ["000002.json"]


def test_a_live_process_of_this_machine_holds_the_lease_without_heartbeats(ledger):
    """A process that was stopped with SIGSTOP may continue."""
    with lease(ledger):
        (name,) = ledger.store.names(FOLDER)
        fields = json.loads(ledger.store.read(f"{FOLDER}/{name}"))
        ledger.store.write(f"{FOLDER}/{name}", json.dumps(fields | {"beat": 0.0}).encode())
        assert str(os.getpid()) in holder(ledger)


@pytest.mark.parametrize("age", [0.0, 3600.0])
def test_heartbeats_decide_if_the_start_of_a_live_process_is_hidden(
    tmp_path, clock, monkeypatch, age
):
    """Some systems hide /proc/PID of other users."""
    ledger = Ledger(LocalStore(str(tmp_path)))
    ledger.create()
    me = lease_files.this_process(3)
    beat = clock.time() - age
    other = me.model_copy(update={"token": "another", "beat": beat})
    ledger.store.write(f"{FOLDER}/000003.json", other.as_json())
    read_text = Path.read_text

    def hidden(path, *args):
        if path == Path(f"/proc/{os.getpid()}/stat"):
            raise FileNotFoundError
        return read_text(path, *args)

    monkeypatch.setattr(Path, "read_text", hidden)
    is_fresh = age == 0.0
    assert (holder(ledger) is not None) == is_fresh
    with pytest.raises(LedgerError) if is_fresh else nullcontext(), lease(ledger):
        assert ledger.store.names(FOLDER)[-1:] == ["000004.json"]


def test_a_process_of_another_user_is_alive(monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert lease_files.this_process(1).is_alive


def test_the_lease_of_another_machine_is_held_while_it_has_heartbeats(ledger):
    lease_of_another_machine(ledger, age=0.0)
    with pytest.raises(LedgerError, match="process 4711 on far-away"), lease(ledger):
        pass


@pytest.mark.parametrize("age", [3600, -3600], ids=["slow", "fast"])
def test_a_wrong_clock_does_not_expire_the_lease(ledger, monkeypatch, age):
    lease_of_another_machine(ledger, age=age)

    def sleep(seconds):
        """Write a heartbeat of the other machine, by its own clock, during the wait."""
        lease_of_another_machine(ledger, age=age - seconds)

    monkeypatch.setattr(leases, "time", SimpleNamespace(**vars(time) | {"sleep": sleep}))
    with pytest.raises(LedgerError, match="process 4711"), lease(ledger):
        pass
    with pytest.raises(LedgerError, match="process 4711"):
        check_free(ledger)


@pytest.mark.parametrize("age", [3600, -3600], ids=["slow", "fast"])
def test_the_lease_of_a_lost_machine_with_a_wrong_clock_expires(ledger, clock, age):
    lease_of_another_machine(ledger, age=age)
    begun = clock.seconds
    assert holder(ledger) is None
    check_free(ledger)
    with lease(ledger):
        assert ledger.store.names(FOLDER)[-1:] == ["000004.json"]
    assert clock.seconds <= begun + 2 * leases.LAPSE_SECONDS + 2


def test_exactly_one_process_takes_over_an_expired_lease(ledger, quick):
    lease_of_another_machine(ledger, age=3600)
    losers = FORK.Semaphore(0)

    def take(_):
        """Take the lease, and hold it until all others have lost."""
        try:
            with lease(Ledger(open_store(ledger.store.url))):
                for _ in range(CONTENDERS - 1):
                    losers.acquire(timeout=30)
        except LedgerError:
            losers.release()
            return False
        return True

    assert at_once(CONTENDERS, take) == 1


def test_a_late_contender_does_not_get_an_old_number(ledger, monkeypatch):
    lease_of_another_machine(ledger, age=0.0, number=7)
    # The contender reads an old state: lease 3 has ended, and lease 4 does not exist yet.
    latest = lease_files.LeaseFiles(ledger.store).latest()
    early = [latest.model_copy(update={"number": 3, "ended": True})]
    real = lease_files.LeaseFiles.latest
    monkeypatch.setattr(
        lease_files.LeaseFiles, "latest", lambda files: early.pop() if early else real(files)
    )
    with pytest.raises(LedgerError, match="process 4711"), lease(ledger):
        pass
    assert ledger.store.names(FOLDER) == ["000007.json"]


CHANGES = {
    "write": lambda store, folder: store.write("metadata.csv", b"old"),
    "create": lambda store, folder: store.create("new", b"old"),
    "delete": lambda store, folder: store.delete("metadata.csv"),
    "remove": lambda store, folder: store.remove("files"),
    "put_folder": lambda store, folder: store.put_folder(folder, "files/a", {"x": ""}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_holder_that_was_suspended_changes_nothing_of_the_next_one(
    ledger, monkeypatch, tmp_path, change
):
    """It continues between its last check of the lease and a change."""
    (tmp_path / "staged").mkdir()
    (tmp_path / "staged" / "x").write_text("old")
    for name in ("metadata.csv", "files/a/x"):
        ledger.store.write(name, b"new")
    with lease(ledger) as held:
        held.check()
        CHANGES["write"](ledger.store, None)
        lease_of_another_machine(Ledger(open_store(ledger.store.url)), age=0.0, number=9)
        ledger.store.before_change = lambda: None
        ledger.store.write("metadata.csv", b"new")
        ledger.store.before_change = held.ensure
        now = time.clock_gettime(time.CLOCK_BOOTTIME) + 43
        monkeypatch.setattr(
            leases, "time", SimpleNamespace(**vars(time) | {"clock_gettime": lambda _: now})
        )
        with pytest.raises(LedgerError, match="another process has taken over the dataset"):
            CHANGES[change](ledger.store, tmp_path / "staged")
        monkeypatch.undo()
        ledger.store.before_change = lambda: None
    assert ledger.store.read("metadata.csv") == b"new"
    assert ledger.store.read("files/a/x") == b"new"
    assert not ledger.store.exists("new")


@pytest.fixture
def poor_store(tmp_path, monkeypatch):
    """The store of a contender. It creates files, but the answer is lost."""
    monkeypatch.setattr(leases, "BEAT_SECONDS", 3600)
    store = HookedStore(str(tmp_path))
    Ledger(store).create()
    return store


def test_a_lease_is_acquired_if_the_answer_of_the_store_is_lost(poor_store, monkeypatch):
    """The store repeats the request, and finds the file that it has created."""
    create = poor_store.create
    monkeypatch.setattr(poor_store, "create", lambda *file: create(*file) and create(*file))
    with lease(Ledger(poor_store)):
        assert poor_store.names(FOLDER)[-1:] == ["000001.json"]


def test_a_lease_that_came_too_late_is_removed_if_the_answer_is_lost(poor_store, monkeypatch):
    """A holder that had ended is active again. Otherwise, its lease would seem to be replaced."""
    lease_of_another_machine(Ledger(poor_store), age=0.0, number=1, ended=True)
    create = poor_store.create

    def create_late(*file):
        lease_of_another_machine(Ledger(open_store(poor_store.url)), age=0.0, number=1)
        return create(*file) and create(*file)

    monkeypatch.setattr(poor_store, "create", create_late)
    with pytest.raises(LedgerError, match="process 4711"), lease(Ledger(poor_store)):
        pass
    assert poor_store.names(FOLDER) == ["000001.json"]


def test_a_lease_whose_creation_failed_does_not_block_the_next_one(poor_store, monkeypatch):
    create = poor_store.create

    def fail(*file):
        create(*file)
        raise StoreError("bucket", "is down.")

    with monkeypatch.context() as patch:
        patch.setattr(poor_store, "create", fail)
        with pytest.raises(StoreError, match="is down"), lease(Ledger(poor_store)):
            pass
    assert holder(Ledger(poor_store)) is None
    with lease(Ledger(poor_store)):
        assert poor_store.names(FOLDER)[-1:] == ["000002.json"]


def test_a_lease_that_cannot_delete_earlier_ones_does_not_block_the_next_one(
    poor_store, lease_store, monkeypatch
):
    def fail(_):
        raise StoreError("bucket", "is down.")

    with lease(Ledger(poor_store)):
        pass
    with monkeypatch.context() as patch:
        patch.setattr(lease_store, "delete", fail)
        with lease(Ledger(poor_store)):
            pass
    assert poor_store.names(FOLDER) == ["000001.json", "000002.json"]
    with lease(Ledger(poor_store)):
        pass
    assert poor_store.names(FOLDER) == ["000003.json"]


def test_a_lease_whose_last_write_failed_does_not_block_the_next_one(poor_store, lease_store):
    def fail():
        raise StoreError("bucket", "is down.")

    with lease(Ledger(poor_store)):
        lease_store.before_write = fail
    assert holder(Ledger(poor_store)) is None
    lease_store.before_write = lambda: None
    with lease(Ledger(poor_store)):
        assert poor_store.names(FOLDER)[-1:] == ["000002.json"]


def test_check_fails_after_another_process_took_over(ledger):
    with lease(ledger) as held:
        held.check()
        lease_of_another_machine(ledger, age=0.0, number=9)
        with pytest.raises(LedgerError, match="another process has taken over"):
            held.check()


def test_a_holder_whose_heartbeat_was_delayed_notices_that_it_lost_the_lease(
    tmp_path, clock, lease_store, monkeypatch
):
    """Another process takes over before the store has written the heartbeat."""
    monkeypatch.setattr(leases, "BEAT_SECONDS", 0.01)
    heartbeats = []
    elsewhere = Ledger(LocalStore(str(tmp_path)))

    def delay():
        heartbeats.append(clock.seconds)
        if len(heartbeats) == 1:
            clock.seconds += leases.LAPSE_SECONDS + 1
            lease_of_another_machine(elsewhere, age=0.0, number=9)

    def has_ended_or_continued():
        threads = [thread for thread in threading.enumerate() if thread.name == "lease"]
        return not threads or len(heartbeats) > 1

    ledger = Ledger(LocalStore(str(tmp_path)))
    ledger.create()
    lease_store.before_write = delay
    with lease(ledger) as held:
        wait_for(has_ended_or_continued, "the end of the heartbeats")
        with pytest.raises(LedgerError, match="another process has taken over the dataset"):
            held.ensure()


def test_a_check_without_a_recent_heartbeat_sends_one(held, clock, lease_store):
    """Otherwise a contender could soon have seen the file unchanged for long enough."""
    before = lease_store.read(f"{FOLDER}/000001.json")
    clock.seconds += leases.LAPSE_SECONDS / 2 + 1
    held.ensure()
    assert lease_store.read(f"{FOLDER}/000001.json") != before


def test_a_recent_heartbeat_is_no_reason_for_a_request(held, clock, lease_store):
    lease_store.before_write = lambda: pytest.fail("a request")
    clock.seconds += leases.LAPSE_SECONDS / 2 - 1
    held.ensure()


def test_a_holder_that_can_send_no_heartbeat_stops(held, clock, lease_store):
    def fail():
        raise StoreError("bucket", "is down.")

    lease_store.before_write = fail
    clock.seconds += leases.LAPSE_SECONDS / 2 + 1
    with pytest.raises(StoreError, match="is down"):
        held.ensure()


def test_a_holder_stops_if_all_heartbeats_take_too_long(held, clock, lease_store):
    def delay():
        clock.seconds += leases.LAPSE_SECONDS / 2 + 1

    lease_store.before_write = delay
    clock.seconds += leases.LAPSE_SECONDS / 2 + 1
    with pytest.raises(StoreError, match=r"needs more than 10 s for a heartbeat of the lease"):
        held.ensure()


def test_a_single_heartbeat_that_takes_too_long_is_repeated(held, clock, lease_store):
    delays = [leases.LAPSE_SECONDS, 0.0]

    def delay():
        clock.seconds += delays.pop(0)

    lease_store.before_write = delay
    clock.seconds += leases.LAPSE_SECONDS / 2 + 1
    held.ensure()
    assert not delays


@pytest.mark.usefixtures("clock")
def test_a_contender_that_was_suspended_leaves_the_lease_to_a_holder_that_returned(
    tmp_path, monkeypatch
):
    """The holder sends a heartbeat after the contender has seen the file unchanged."""
    ledger = Ledger(LocalStore(str(tmp_path)))
    ledger.create()
    lease_of_another_machine(ledger, age=3600)
    create = ledger.store.create

    def suspended(name, data):
        lease_of_another_machine(Ledger(LocalStore(str(tmp_path))), age=0.0)
        return create(name, data)

    monkeypatch.setattr(ledger.store, "create", suspended)
    with pytest.raises(LedgerError, match="process 4711"), lease(ledger):
        pass
    assert ledger.store.names(FOLDER) == ["000003.json"]


def test_wait_waits_for_the_end_of_the_lease(ledger, quick, monkeypatch):
    # Otherwise the lease of the other machine expires if its end is late.
    monkeypatch.setattr(leases, "LAPSE_SECONDS", 3600)
    waiting = FORK.Event()

    def sleep(seconds):
        waiting.set()
        time.sleep(seconds)

    monkeypatch.setattr(leases, "time", SimpleNamespace(**vars(time) | {"sleep": sleep}))
    with ExitStack() as stack:
        lease_of_another_machine(ledger, age=0.0)
        pid = os.fork()
        if pid == 0:
            waiting.wait()
            lease_of_another_machine(ledger, age=0.0, ended=True)
            os._exit(0)
        stack.callback(os.waitpid, pid, 0)
        with lease(ledger, wait=Wait()) as held:
            assert str(os.getpid()) in holder(ledger)
            assert held.has_waited


def test_the_error_names_a_lease_of_another_version(ledger):
    ledger.store.write(f"{FOLDER}/000001.json", b'{"version": 99}')
    with pytest.raises(LedgerError, match=r"000001\.json: is damaged, or is not a lease of"):
        holder(ledger)


@pytest.mark.parametrize("name", ["999999.json", "zzzz.json", "0000002.json", "000002.json.bak"])
def test_a_foreign_file_is_rejected(ledger, quick, name):
    with lease(ledger):
        pass
    ledger.store.write(f"{FOLDER}/{name}", ledger.store.read(f"{FOLDER}/000001.json"))
    with pytest.raises(LedgerError, match=rf"^\S+/{name}: is damaged, .* remove the file\.$"):
        lease(ledger, wait=Stop()).__enter__()
    ledger.store.delete(f"{FOLDER}/{name}")
    with lease(ledger):
        pass


class Stop(Wait):
    def begin(self):
        pytest.fail("the lease counts as held")


@pytest.mark.parametrize(
    "changes",
    [
        {"beat": math.nan},
        {"beat": math.inf},
        {"beat": "now"},
        {"since": 1e300},
        {"since": None},
        {"number": 4},
        {"number": 3.0},
        {"pid": "4711"},
        {"pid": -1},
        {"host": "a\nb"},
        {"host": 1},
        {"machine": ["x"]},
        {"ended": "no"},
        {"clean": None},
    ],
    ids=str,
)
def test_values_that_no_holder_writes_are_rejected(ledger, quick, changes):
    fields = {"number": 3, "token": "another", "host": "far", "machine": "m", "pid": 1}
    fields |= {"started": "1", "since": time.time(), "beat": time.time(), "ended": False}
    ledger.store.write(f"{FOLDER}/000003.json", json.dumps(fields | changes).encode())
    for attempt in (lambda: holder(ledger), lambda: lease(ledger, wait=Stop()).__enter__()):
        with pytest.raises(LedgerError, match=r"000003\.json: is damaged.* remove the file\.$"):
            attempt()


@pytest.mark.parametrize("data", [b"[" * 100_000, b"\xff", b"[]", b"1" * 5000])
def test_content_that_is_no_object_is_rejected(ledger, quick, data):
    ledger.store.write(f"{FOLDER}/000003.json", data)
    with pytest.raises(LedgerError, match=r"000003\.json: is damaged"):
        holder(ledger)


def test_more_than_a_million_leases(ledger):
    lease_of_another_machine(ledger, age=0.0, number=999_999, ended=True)
    for number in (1_000_000, 1_000_001):
        with lease(ledger):
            assert f"{number}.json" in ledger.store.names(FOLDER)
    assert ledger.store.names(FOLDER) == ["1000001.json"]


def test_a_folder_that_cannot_be_created_is_rejected(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nosuch" / "folder")
    with pytest.raises(StoreError, match="link"), lease(Ledger(open_store(str(tmp_path / "link")))):
        pytest.fail("the lease was acquired")
