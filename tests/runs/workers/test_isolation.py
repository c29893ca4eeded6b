"""Every kind of faulty input among healthy inputs gets the right outcome, and leaves nothing."""

import gc
import mmap
import multiprocessing
import os
import random
import signal
import threading
import time
from collections import Counter
from contextlib import suppress

import psutil
import pytest
from harness.comparison import AFTER_A_RUN
from harness.jobs import run_job
from harness.live import STEP_MODULES, wait_for
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from poison import FILE_POISONS, POISONS, kind_of
from torch.utils.data import DataLoader

from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.outcome import Outcome
from batchmill.errors import WorkerError
from batchmill.runs.workers import inputs_in_progress
from batchmill.runs.workers.guarded_inputs import GuardedInputs
from batchmill.runs.workers.input_feed import SharedTurns
from batchmill.runs.workers.isolated_executor import IsolatedExecutor
from batchmill.runs.workers.loader_driver import LoaderDriver
from batchmill.runs.workers.memory_usage import Headroom, resident_bytes
from batchmill.runs.workers.processes import descendants
from batchmill.runs.workers.stop_flags import SharedFlag, Stop
from batchmill.runs.workers.watchdog import Limits, Watchdog
from batchmill.runs.workers.worker import this_worker
from batchmill.runs.workers.worker_channel import WorkerChannel

pytestmark = pytest.mark.slow

# Long enough that healthy inputs do not time out on a busy machine.
TIMEOUT = 5.0
MEMORY_BYTES = 300 * 2**20
POLICY = FailurePolicy(retries=1, timeout=TIMEOUT, memory_limit=MEMORY_BYTES)
PATIENT = FailurePolicy(retries=0, timeout=60, memory_limit=MEMORY_BYTES)
# The number of executions by kind of outcome, with one retry. A timeout is not retried.
EXECUTIONS = {"ok": 1, "timeout": 1, "failed": 2, "crashed": 2, "oom": 2}


@pytest.fixture(scope="module", autouse=True)
def _without_garbage():
    """Release the descriptors that are in cycles of references, before the first test."""
    gc.collect()


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch):
    """Check that a test leaves no process, thread, file descriptor or shared memory."""
    monkeypatch.chdir(STEP_MODULES)
    me = psutil.Process()
    before = (set(me.children(recursive=True)), me.num_fds(), set(os.listdir("/dev/shm")))
    threads = set(threading.enumerate())
    yield
    # The thread of a closed queue may need a moment to end.
    wait_for(lambda: set(threading.enumerate()) <= threads, "the end of its threads", 10)
    # A killed process needs a moment to release its memory.
    wait_for(
        lambda: not living(set(me.children(recursive=True)) - before[0]), "the end of children", 10
    )
    # Other processes on the machine create and remove files here too. Only leaked files stay.
    new = set(os.listdir("/dev/shm")) - before[2]
    if new or me.num_fds() > before[1]:
        # Queues and processes in a cycle of references keep their descriptors until then.
        gc.collect()
    assert me.num_fds() <= before[1]
    wait_for(lambda: not new & set(os.listdir("/dev/shm")), lambda: f"the end of {new}", 120)


def living(processes):
    """Return the processes that are not zombies."""
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def make_inputs(folder, kinds):
    """Write an input for each kind, in this order. Return their names."""
    folder.mkdir()
    names = [f"{number:02d}-{kind}" for number, kind in enumerate(kinds)]
    for name in names:
        (folder / name).write_text("x")
    return names


def among_healthy(poisons, total=64, seed=0):
    """Return poisons and healthy inputs, shuffled."""
    kinds = [*poisons, *["healthy"] * (total - len(poisons))]
    random.Random(seed).shuffle(kinds)
    return kinds


def run_poisons(
    tmp_path, kinds, num_workers, step="poison:step", policy=POLICY, before=None, batch_size=8
):
    """Run the inputs. Return the outcomes by input, and how often each input was executed."""
    names = make_inputs(tmp_path / "in", kinds)
    seen = []
    run_job(
        tmp_path / "in",
        step,
        tmp_path / "out",
        batch_size=batch_size,
        num_workers=num_workers,
        cores=max(1, num_workers),
        seen=seen,
        policy=policy,
        before=before,
        log=str(tmp_path / "log"),
    )
    outcomes = {outcome.input: outcome for outcome in seen}
    assert len(seen) == len(names)
    assert set(outcomes) == set(names)
    return outcomes, Counter((tmp_path / "log").read_text().split())


def check(outcomes, executions):
    for name, outcome in outcomes.items():
        _, kind, error = POISONS.get(kind_of(name), (None, "ok", ""))
        assert (outcome.kind, outcome.error) == (kind, error), outcome
        assert executions[name] == EXECUTIONS[kind], name
        assert outcome.attempts == executions[name]
        if kind_of(name) == "healthy":
            assert outcome.rows == f'[{{"surroundings":["{STEP_MODULES}",null,true]}}]'


@pytest.mark.parametrize(
    ("num_workers", "step"),
    [
        (4, "poison:step"),
        *(
            pytest.param(num_workers, step, marks=pytest.mark.long)
            for num_workers, step in [
                (0, "poison:step"),
                (0, "poison:Items"),
                (1, "poison:step"),
                (1, "poison:Items"),
                (4, "poison:Items"),
            ]
        ),
    ],
)
def test_every_poison_at_once(tmp_path, num_workers, step):
    poisons = [name for name in POISONS if name != "huge"]
    check(*run_poisons(tmp_path, among_healthy(poisons), num_workers, step))


@pytest.mark.parametrize(
    "num_workers", [4, *(pytest.param(number, marks=pytest.mark.long) for number in (0, 1))]
)
def test_every_fault_with_files_at_once(tmp_path, num_workers):
    folder = tmp_path / "in"

    def spoil():
        for path in folder.iterdir():
            if kind_of(path.name) == "empty":
                path.write_text("")
            if kind_of(path.name) in ("vanished", "folder", "loop"):
                path.unlink()
            if kind_of(path.name) == "loop":
                path.symlink_to(path)
            if kind_of(path.name) == "folder":
                path.mkdir()

    errors = {name: error for name, (_, error) in FILE_POISONS.items()}
    errors |= {"empty": "IndexError", "folder": "IsADirectoryError"}
    missing = {"vanished": "FileNotFoundError", "loop": "FileNotFoundError"}
    kinds = among_healthy([*errors, *missing])
    outcomes, executions = run_poisons(tmp_path, kinds, num_workers, "poison:write", before=spoil)
    for name, outcome in outcomes.items():
        kind = kind_of(name)
        if kind in ("healthy", "late"):
            assert (outcome.kind, executions[name]) == ("ok", 1)
        elif kind in missing:
            assert (outcome.kind, outcome.error) == ("missing", missing[kind])
            assert executions[name] == 0
        else:
            assert (outcome.kind, outcome.error) == ("failed", errors[kind])
            assert executions[name] == 2
    files = [path for path in (tmp_path / "out" / "files").rglob("*") if not path.is_dir()]
    assert Counter(path.name for path in files) == {"copy": kinds.count("healthy"), "x": 1}
    assert sorted(os.listdir(tmp_path)) == ["in", "log", "out"]
    assert sorted(os.listdir(tmp_path / "out" / ".batchmill")) == AFTER_A_RUN


@pytest.mark.long
@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    poisons=st.lists(
        # These three take many seconds each. The tests above cover them.
        st.sampled_from([name for name in POISONS if name not in ("allocate", "huge", "exit0")]),
        min_size=1,
        max_size=20,
    ),
    num_workers=st.sampled_from([0, 1, 4]),
    seed=st.integers(0, 1000),
)
def test_random_mixes_in_random_order(tmp_path_factory, poisons, num_workers, seed):
    kinds = among_healthy(poisons, 40, seed)
    check(*run_poisons(tmp_path_factory.mktemp("mix"), kinds, num_workers))


@pytest.mark.parametrize(("size", "count"), [(300_000, 24), (700_000, 24), (5_000_000, 10)])
def test_large_metadata_of_many_inputs_arrives_once(tmp_path, size, count):
    (tmp_path / f"large_{size}.py").write_text(
        "def step(source, *, log):\n"
        "    with open(log, 'a') as file: file.write(source.name + '\\n')\n"
        f"    return {{'text': 'x' * {size}}}\n"
    )
    os.chdir(tmp_path)
    outcomes, executions = run_poisons(tmp_path, ["healthy"] * count, 2, f"large_{size}:step")
    assert {(o.kind, len(o.rows)) for o in outcomes.values()} == {("ok", size + 13)}
    assert set(executions.values()) == {1}


def test_an_input_that_ends_at_its_deadline_is_executed_once(tmp_path):
    (tmp_path / "in").mkdir()
    names = [f"{number:02d}-{150 + 3 * number}" for number in range(0, 40, 2)]
    for name in names:
        (tmp_path / "in" / name).write_text("x")
    (tmp_path / "dozing.py").write_text(
        "import time\n"
        "def step(source, *, log):\n"
        "    with open(log, 'a') as file: file.write(source.name + '\\n')\n"
        "    time.sleep(int(source.name.split('-')[1]) / 1000)\n"
    )
    os.chdir(tmp_path)
    seen = []
    policy = FailurePolicy(retries=1, timeout=0.2)
    log = str(tmp_path / "log")
    run_job(tmp_path / "in", "dozing:step", tmp_path / "out", seen=seen, policy=policy, log=log)
    assert sorted(outcome.input for outcome in seen) == names
    assert {outcome.kind for outcome in seen} <= {"ok", "timeout"}
    # An input that gets no CPU until its deadline is not executed at all.
    (tmp_path / "log").touch()
    executed = Counter((tmp_path / "log").read_text().split())
    assert max(executed.values(), default=1) == 1
    assert {outcome.input for outcome in seen if outcome.kind == "ok"} <= set(executed)


def test_a_worker_takes_no_inputs_that_others_can_execute_sooner(tmp_path):
    """The first input waits until all others are done. A whole batch behind it would wait, too."""
    done = tmp_path / "done"
    done.mkdir()

    def run(index):
        if index == 0:
            wait_for(lambda: len(os.listdir(done)) == 29, "the other inputs", 60)
        (done / str(index)).touch()
        return Outcome(str(index), str(index), "ok", 1, 0.0, 0.0, "here")

    seen = []
    IsolatedExecutor(
        count=30, run=run, lost=print, deliver=seen.extend, limits=Limits(), retries=0
    ).execute(batch_size=8, num_workers=2)
    assert [outcome.input for outcome in seen][-1] == "0"
    assert len(seen) == 30


def test_lost_outcomes_end_the_run(monkeypatch):
    monkeypatch.setattr("batchmill.runs.workers.ring_buffer.RingBuffer.write", lambda *_: None)
    monkeypatch.setattr("batchmill.runs.workers.watchdog._MAX_QUIET_CHECKS", 2)
    with pytest.raises(WorkerError, match="the worker process died"):
        IsolatedExecutor(
            count=4,
            run=lambda index: Outcome("a", "a", "ok", 1, 0.0, 0.0, "here"),
            lost=lambda index, death: Outcome("a", "a", death.kind, 1, 0.0, 0.0, "here"),
            deliver=lambda outcomes: None,
            limits=Limits(),
            retries=0,
        ).execute(batch_size=2, num_workers=2)


def test_too_large_metadata_is_rejected(tmp_path):
    check(*run_poisons(tmp_path, ["huge", "healthy"], 2, policy=FailurePolicy(retries=1)))


def test_the_log_of_a_timeout_has_the_stack(tmp_path):
    outcomes, _ = run_poisons(tmp_path, ["sleep", "healthy"], 1)
    outcome = outcomes["00-sleep"]
    assert f"still running after {TIMEOUT:g} s (--timeout)" in outcome.message
    assert "poison.py" in outcome.log
    assert outcome.seconds > TIMEOUT


def test_the_log_of_a_crash_has_the_stack(tmp_path):
    outcomes, _ = run_poisons(tmp_path, ["segfault", "healthy"], 1)
    outcome = outcomes["00-segfault"]
    assert outcome.message == "the worker process died"
    assert "Fatal Python error: Segmentation fault" in outcome.log
    assert "poison.py" in outcome.log


def test_the_log_has_only_the_tail_of_this_input(tmp_path):
    outcomes, _ = run_poisons(tmp_path, ["noise", "valueerror"], 1)
    assert outcomes["00-noise"].log.endswith("the last line\n")
    assert len(outcomes["00-noise"].log) <= 16 * 1024
    assert outcomes["01-valueerror"].log == ""


@pytest.mark.parametrize(
    ("fails", "retries", "kind", "attempts"),
    [(2, 2, "ok", 3), (2, 1, "failed", 2), (1, 0, "failed", 1), (0, 2, "ok", 1)],
)
def test_an_input_is_executed_at_most_retries_plus_one_times(
    tmp_path, fails, retries, kind, attempts
):
    (tmp_path / "in").mkdir()
    for name in ("flaky", "a", "b", "c"):
        (tmp_path / "in" / name).write_text("x")
    seen = []
    run_job(
        tmp_path / "in",
        "poison:flaky",
        tmp_path / "out",
        seen=seen,
        policy=FailurePolicy(retries=retries),
        log=str(tmp_path / "log"),
        fails=fails,
    )
    outcome = next(outcome for outcome in seen if outcome.input == "flaky")
    assert (outcome.kind, outcome.attempts) == (kind, attempts)
    executions = Counter((tmp_path / "log").read_text().split())
    assert executions == {"flaky": attempts, "a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize("poison", ["segfault", "kill", "allocate"])
def test_without_retries_a_crash_is_final_at_once(tmp_path, poison):
    policy = FailurePolicy(retries=0, timeout=TIMEOUT, memory_limit=MEMORY_BYTES)
    outcomes, executions = run_poisons(tmp_path, [poison, "healthy"], 2, policy=policy)
    assert outcomes[f"00-{poison}"].kind == POISONS[poison][1]
    assert executions[f"00-{poison}"] == 1


def test_a_crashed_input_leaves_no_files(tmp_path):
    (tmp_path / "halves.py").write_text(
        "import os\n"
        "def step(source, out):\n"
        "    (out / 'half').write_text('x')\n"
        "    if source.name == 'a': os._exit(3)\n"
        "    return {'output': 'half'}\n"
    )
    os.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    for name in "abc":
        (tmp_path / "in" / name).write_text("x")
    summary = run_job(tmp_path / "in", "halves:step", tmp_path / "out")
    assert summary.outcomes == {"ok": 2, "crashed": 1}
    assert len(list((tmp_path / "out" / "files").iterdir())) == 2
    assert sorted(os.listdir(tmp_path / "out" / ".batchmill")) == AFTER_A_RUN


def test_a_kill_by_the_kernel_for_lack_of_memory_is_oom(tmp_path, monkeypatch):
    kills = iter(range(1000))
    monkeypatch.setattr(
        "batchmill.runs.workers.loader_driver.kernel_oom_kills", lambda: next(kills)
    )
    outcomes, executions = run_poisons(tmp_path, ["kill", "healthy"], 1)
    assert (outcomes["00-kill"].kind, outcomes["01-healthy"].kind) == ("oom", "ok")
    assert executions["00-kill"] == 2


def test_an_input_that_exceeds_memory_and_time_is_oom(tmp_path, monkeypatch):
    """Swapping slows down the input. A busy machine delays the check."""
    check_worker = Watchdog._check_worker

    def check_late(watchdog, number):
        slots = watchdog.channels[number].in_use
        limit = watchdog.limits.timeout_seconds
        exceeds_time = any(time.monotonic() - slot.started > limit for slot in slots)
        if exceeds_time and (tmp_path / "log.hoarder").exists():  # It exceeds its memory, too.
            check_worker(watchdog, number)

    monkeypatch.setattr(Watchdog, "_check_worker", check_late)
    policy = FailurePolicy(retries=0, timeout=0.5, memory_limit=MEMORY_BYTES)
    outcomes, _ = run_poisons(tmp_path, ["hoard"], 1, policy=policy)
    assert outcomes["00-hoard"].kind == "oom"


def test_when_memory_runs_low_the_largest_worker_is_killed(tmp_path, monkeypatch):
    low = Headroom(available=100 * 2**20, total=16 * 2**30)
    plenty = Headroom(available=8 * 2**30, total=16 * 2**30)
    answers = []
    log, hoarder = tmp_path / "log", tmp_path / "log.hoarder"
    log.touch()
    hoarder.touch()

    def room():
        # The machine is short of memory as long as the greedy worker lives, and another worker is
        # busy. That one waits until the greedy worker is killed.
        is_alive = resident_bytes(int(hoarder.read_text() or 0)) > 0
        is_low = is_alive and "wait" in log.read_text()
        if low in answers and not is_low:
            (tmp_path / "log.go").touch()
        answers.append(low if is_low else plenty)
        return answers[-1]

    monkeypatch.setattr("batchmill.runs.workers.watchdog.headroom", room)
    policy = FailurePolicy(retries=0, timeout=60)
    kinds = ["healthy", "hoard", "wait", "healthy"]
    outcomes, _ = run_poisons(tmp_path, kinds, 4, policy=policy, batch_size=1)
    kinds = {kind_of(name): outcome.kind for name, outcome in outcomes.items()}
    assert kinds == {"healthy": "ok", "hoard": "oom", "wait": "ok"}
    assert "and the machine had only 100 MiB left" in outcomes["01-hoard"].message


def test_a_request_to_stop_leaves_the_rest_without_an_outcome():
    seen = []
    stop = Stop(grace_seconds=0.2)

    def run(index):
        if index == 3:
            threading.Event().wait()
        return Outcome(str(index), str(index), "ok", 1, 0.0, 0.0, "here")

    def deliver(outcomes):
        seen.extend(outcome.input for outcome in outcomes)
        if "1" in seen:
            stop.request()

    IsolatedExecutor(
        count=1000,
        run=run,
        lost=lambda index, death: pytest.fail(f"input {index} was reported as lost"),
        deliver=deliver,
        limits=Limits(),
        retries=1,
        stop=stop,
    ).execute(batch_size=2, num_workers=2)
    assert stop.requested
    assert "3" not in seen
    assert 2 <= len(seen) == len(set(seen)) < 1000


@pytest.fixture
def retries_at_once(monkeypatch):
    monkeypatch.setattr(inputs_in_progress, "_FIRST_PAUSE", 0.0)


@pytest.mark.usefixtures("retries_at_once")
def test_a_retry_runs_between_other_inputs():
    """Otherwise a run of 100,000 inputs would show its first failure at its end."""
    seen = []
    received = multiprocessing.get_context("fork").Event()

    def run(index):
        if index == 100:
            assert received.wait(60)
        kind = "failed" if index == 3 else "ok"
        return Outcome(str(index), str(index), kind, 1, 0.0, 0.0, "here")

    def deliver(outcomes):
        seen.extend(outcomes)
        # Outcomes arrive in order, so the failure of input 3 has been received, too.
        if any(int(outcome.input) > 3 for outcome in outcomes):
            received.set()

    IsolatedExecutor(
        count=200,
        run=run,
        lost=lambda index, death: pytest.fail(f"input {index} was reported as lost"),
        deliver=deliver,
        limits=Limits(),
        retries=1,
    ).execute(batch_size=1, num_workers=1)
    (failed,) = (position for position, outcome in enumerate(seen) if outcome.kind == "failed")
    assert seen[failed].attempts == 2
    assert len(seen) == 200
    assert failed < 199


@pytest.mark.usefixtures("retries_at_once")
@pytest.mark.parametrize(("batch_size", "num_workers"), [(1, 1), (8, 1), (1, 4), (8, 4)])
def test_a_shortened_run_executes_only_the_inputs_before_the_boundary(
    tmp_path, batch_size, num_workers, monkeypatch
):
    go = multiprocessing.get_context("fork").Event()
    drains, drive = [], LoaderDriver.drive

    def drive_noted(driver):
        drains.append(driver._drain)
        return drive(driver)

    monkeypatch.setattr(LoaderDriver, "drive", drive_noted)
    log = os.open(tmp_path / "log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    seen, boundaries = [], []

    def run(index):
        this_worker.channel.begin_step()
        os.write(log, b"%d\n" % index)
        # After the death of a worker, a DataLoader waits for the inputs that have begun.
        while index >= 50 and not go.is_set() and not drains[-1].is_set():
            time.sleep(0.001)
        if index == 20 and not go.is_set():
            os._exit(3)  # A second DataLoader continues from here.
        return Outcome(str(index), str(index), "ok", 1, 0.0, 0.0, "here")

    def deliver(outcomes):
        seen.extend(int(outcome.input) for outcome in outcomes)
        # At least 25 inputs have an outcome before a worker blocks at 50.
        if len(seen) >= 25 and not boundaries:
            boundaries.append(isolated.shorten())
            go.set()

    isolated = IsolatedExecutor(
        count=1000,
        run=run,
        lost=lambda index, death: Outcome(
            str(index), str(index), "crashed", 1, death.seconds, 0.0, "here"
        ),
        deliver=deliver,
        limits=Limits(),
        retries=1,
    )
    isolated.execute(batch_size=batch_size, num_workers=num_workers)
    os.close(log)
    (boundary,) = boundaries
    assert 25 < boundary <= 50 + 8 * 4 * 3
    assert sorted(seen) == list(range(boundary))
    executed = Counter(map(int, (tmp_path / "log").read_text().split()))
    assert max(executed) < boundary
    assert {index for index, times in executed.items() if times > 1} <= {20}


def test_a_run_can_be_shortened_before_it_begins():
    seen = []
    isolated = IsolatedExecutor(
        count=100,
        run=lambda index: Outcome(str(index), str(index), "ok", 1, 0.0, 0.0, "here"),
        lost=lambda index, death: pytest.fail(f"input {index} was reported as lost"),
        deliver=lambda outcomes: seen.extend(outcome.input for outcome in outcomes),
        limits=Limits(),
        retries=0,
    )
    assert isolated.shorten() == 1
    isolated.execute(batch_size=8, num_workers=2)
    assert seen == ["0"]


@pytest.fixture
def large_process():
    """Make this process use more memory than an input may use."""
    with mmap.mmap(-1, MEMORY_BYTES + 100 * 2**20, flags=mmap.MAP_PRIVATE) as ballast:
        for start in range(0, len(ballast), mmap.PAGESIZE):
            ballast[start] = 1
        yield


def test_memory_shared_by_a_fork_is_not_counted_twice(tmp_path, large_process, monkeypatch):
    used_bytes, forks = WorkerChannel.used_bytes, []

    def used(channel, pid, limit):
        found = used_bytes(channel, pid, limit)
        forks.append(len([*descendants(pid)]))
        if sum(count >= 2 for count in forks) >= 3:
            (tmp_path / "log.go").touch()  # The forks end after three checks.
        return found

    monkeypatch.setattr(WorkerChannel, "used_bytes", used)
    outcomes, _ = run_poisons(tmp_path, ["fork_and_wait", "healthy"], 1, policy=PATIENT)
    assert {outcome.kind for outcome in outcomes.values()} == {"ok"}


@pytest.mark.parametrize("poison", ["fork_and_hoard", "fork_and_hoard_and_fork"])
def test_memory_of_a_fork_is_counted(tmp_path, large_process, poison):
    outcomes, _ = run_poisons(tmp_path, [poison, "healthy"], 1, policy=PATIENT)
    assert [outcomes[name].kind for name in sorted(outcomes)] == ["oom", "ok"]


def no_blame(index, death):
    pytest.fail(f"input {index} was reported as lost: {death}")


def run_healthy(count, num_workers, lost=no_blame):
    """Run `count` healthy inputs in batches of one. Return the outcomes in order of arrival."""
    seen = []
    IsolatedExecutor(
        count=count,
        run=lambda index: Outcome(str(index), str(index), "ok", 1, 0.0, 0.0, "here"),
        lost=lost,
        deliver=seen.extend,
        limits=Limits(),
        retries=0,
    ).execute(batch_size=1, num_workers=num_workers)
    return seen


@pytest.fixture
def handler_of_torch(monkeypatch):
    """Let a DataLoader install its handler of SIGCHLD, as in a notebook."""
    before = signal.getsignal(signal.SIGCHLD)
    monkeypatch.setattr("torch.utils.data._utils.signal_handling._SIGCHLD_handler_set", False)
    assert list(DataLoader([1, 2], num_workers=1, batch_size=None)) == [1, 2]
    assert signal.getsignal(signal.SIGCHLD) != before
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.parametrize("has_one", [False, True])
def test_no_handler_of_dead_children_raises(has_one, request):
    """The handler of torch raises at the line that is being executed, which may hold a lock."""
    if has_one:
        request.getfixturevalue("handler_of_torch")
    before, handlers = signal.getsignal(signal.SIGCHLD), []

    def note(outcomes):
        handlers.append(signal.getsignal(signal.SIGCHLD))

    def run(index):
        this_worker.channel.begin_step()
        if index == 3:
            os._exit(1)
        return Outcome(str(index), str(index), "ok", 1, 0.0, 0.0, "here")

    IsolatedExecutor(
        count=6,
        run=run,
        lost=lambda index, death: Outcome(str(index), "", death.kind, 1, 0.0, 0.0, "here"),
        deliver=note,
        limits=Limits(),
        retries=0,
    ).execute(batch_size=1, num_workers=2)
    assert set(handlers) == {before}
    assert signal.getsignal(signal.SIGCHLD) == before


def test_a_worker_checks_the_drain_flag_again_before_it_begins_an_input(monkeypatch):
    """The process that set the flag saw an idle worker, and will kill it."""

    class LateDrain(SharedFlag):
        checks = 0

        def is_set(self):
            self.checks += 1
            return self.checks > 2

    channel, begun = WorkerChannel(), []
    worker = "batchmill.runs.workers.worker.this_worker"
    monkeypatch.setattr(f"{worker}.channel", channel, raising=False)
    monkeypatch.setattr(f"{worker}.streams", None, raising=False)
    inputs = GuardedInputs(run=begun.append, drain=LateDrain(), turns=SharedTurns(1), batch_size=1)
    inputs.turns.put([(0, 0.0)], first=False)
    assert list(inputs) == []
    assert begun == []
    assert channel.in_use == []
    inputs.turns.close()
    channel.close()


def test_a_worker_that_never_begins_is_replaced(tmp_path, monkeypatch):
    """For example, a worker that was forked while another thread held a lock that it needs."""
    first = tmp_path / "first"
    begin = this_worker.begin

    def begin_late(number, **options):
        if not first.exists():
            first.touch()
            threading.Event().wait()
        begin(number, **options)

    monkeypatch.setattr(this_worker, "begin", begin_late)
    checked, check_silence = [], Watchdog._check_silence

    def check_once(watchdog):
        # Only the first worker hangs. The others may be slow.
        if first.exists() and not checked:
            watchdog._quiet_checks = 10**6
            check_silence(watchdog)
            checked.append(True)

    monkeypatch.setattr(Watchdog, "_check_silence", check_once)
    seen = run_healthy(4, num_workers=1)
    assert sorted(outcome.input for outcome in seen) == ["0", "1", "2", "3"]
