"""Files are fetched ahead and stored behind the step, within limits, and no outcome is lost."""

import errno
import os
import signal
import threading
from collections import Counter
from functools import partial

import pytest
from harness.live import wait_for

from batchmill.core.outcome import Outcome, UnstoredOutcome
from batchmill.runs.workers.isolated_executor import IsolatedExecutor
from batchmill.runs.workers.pipeline import MAX_BYTES, MAX_TRANSFERS, TransferPipeline
from batchmill.runs.workers.watchdog import Limits
from batchmill.runs.workers.worker import this_worker

PATIENCE = 30


def ok(index):
    return Outcome(str(index), str(index), "ok", 1, 0.0, 0.0, "here")


class Job:
    """A job whose processes note what they do in one file, and its outcomes by input."""

    def __init__(self, folder):
        self.folder = folder
        self.outcomes = {}

    def note(self, what, index):
        with open(self.folder / "notes", "a") as file:
            file.write(f"{what} {index}\n")

    def notes(self, what):
        lines = [line.split() for line in (self.folder / "notes").read_text().splitlines()]
        return [int(index) for name, index in lines if name == what]

    def mark(self, name):
        (self.folder / name).touch()

    def wait(self, name):
        wait_for((self.folder / name).exists, name, PATIENCE)

    def fetch(self, index):
        self.note("fetch", index)
        return index

    def step(self, index):
        """Do nothing. Tests replace this."""

    def upload(self, index):
        """Do nothing. Tests replace this."""

    def size(self, index):
        return 1

    def discard(self, index):
        self.note("discard", index)

    def finish(self, index, error):
        outcome = ok(index)
        return outcome._replace(kind="failed", message=str(error)) if error else outcome

    def run(self, index):
        assert self.pipeline.fetched(index) == index
        self.note("step", index)
        this_worker.channel.begin_step()
        self.step(index)
        uploads = [partial(self.upload, index), partial(self.note, "upload", index)]
        return UnstoredOutcome(1, uploads, partial(self.finish, index))

    def deliver(self, outcomes):
        for outcome in outcomes:
            assert int(outcome.input) not in self.outcomes
            self.outcomes[int(outcome.input)] = outcome

    def execute(self, count, batch_size=8, num_workers=1, retries=0):
        self.pipeline = TransferPipeline(
            fetch=lambda index: self.fetch(index),
            discard=lambda index: self.discard(index),
            size=lambda index: self.size(index),
        )
        IsolatedExecutor(
            count=count,
            run=self.run,
            lost=lambda index, death: ok(index)._replace(kind=death.kind),
            deliver=self.deliver,
            limits=Limits(),
            retries=retries,
            pipeline=self.pipeline,
        ).execute(batch_size=batch_size, num_workers=num_workers)
        return {index: outcome.kind for index, outcome in self.outcomes.items()}


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


def test_each_input_is_fetched_executed_and_stored_once(job):
    assert job.execute(100, num_workers=2) == dict.fromkeys(range(100), "ok")
    for what in ("fetch", "step", "upload"):
        assert Counter(job.notes(what)) == dict.fromkeys(range(100), 1)


def test_the_next_inputs_are_fetched_while_the_step_runs(job):
    fetch = job.fetch

    def step(index):
        if index == 0:
            wait_for(lambda: len(job.notes("fetch")) == 8, "all fetches of the batch", PATIENCE)

    job.step = step
    job.fetch = fetch
    assert set(job.execute(8).values()) == {"ok"}


def test_inputs_of_the_next_batch_are_fetched_while_the_last_step_of_a_batch_runs(job):
    def step(index):
        if index == 3:
            wait_for(lambda: len(job.notes("fetch")) >= 8, "fetches of the next batch", PATIENCE)

    job.step = step
    assert set(job.execute(12, batch_size=4).values()) == {"ok"}


def test_files_are_stored_while_the_next_batch_runs(job):
    job.upload = lambda index: index == 3 and job.wait("stepped")
    job.step = lambda index: index == 4 and job.mark("stepped")
    assert set(job.execute(8, batch_size=4).values()) == {"ok"}


def test_each_worker_executes_the_batch_that_it_has_taken(job):
    """The other worker could execute all batches meanwhile, and use up the turns of both."""
    done = set(range(100))
    job.step = lambda index: (
        index == 0 and wait_for(lambda: len(job.notes("upload")) > 80, "other inputs", PATIENCE)
    )
    assert job.execute(100, batch_size=4, num_workers=2) == dict.fromkeys(done, "ok")
    assert Counter(job.notes("step")) == dict.fromkeys(done, 1)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_one_data_loader_executes_all_batches(job, num_workers):
    """A worker that is left with a batch would execute it in another DataLoader."""
    job.step = lambda index: job.note("process", os.getpid())
    assert job.execute(200, 1, num_workers) == dict.fromkeys(range(200), "ok")
    assert len(set(job.notes("process"))) <= num_workers
    assert Counter(job.notes("fetch")) == dict.fromkeys(range(200), 1)


def test_no_worker_takes_inputs_ahead_that_an_idle_worker_could_execute(job):
    job.step = lambda index: (
        index == 0 and wait_for(lambda: len(job.notes("step")) >= 7, "other steps", PATIENCE)
    )
    assert job.execute(8, batch_size=4, num_workers=2) == dict.fromkeys(range(8), "ok")


def test_a_worker_finishes_its_uploads_when_another_worker_dies(job):
    def die(index):
        if index == 0:
            wait_for(lambda: job.notes("waited"), "an upload of the other worker", PATIENCE)
            job.mark("dying")
            os._exit(7)

    def wait_for_death(index):
        if not (job.folder / "dying").exists():
            job.note("waited", index)
            job.wait("dying")

    job.step, job.upload = die, wait_for_death
    kinds = job.execute(16, batch_size=4, num_workers=2)
    assert kinds == dict.fromkeys(range(16), "ok") | {0: "crashed"}
    assert job.notes("waited")
    assert {job.notes("step").count(index) for index in job.notes("waited")} == {1}


def test_files_are_stored_while_the_next_step_runs(job):
    job.upload = lambda index: index == 0 and job.wait("stepped")
    job.step = lambda index: index == 1 and job.mark("stepped")
    assert set(job.execute(2).values()) == {"ok"}


def test_an_outcome_arrives_while_the_next_step_runs(job):
    """Otherwise, it would be lost if a long step then killed its worker."""
    deliver = job.deliver
    job.deliver = lambda outcomes: (deliver(outcomes), job.mark("delivered"))
    job.step = lambda index: index == 1 and job.wait("delivered")
    assert set(job.execute(2).values()) == {"ok"}


def test_transfers_at_a_time_are_limited(job):
    active, most, lock = [], [0], threading.Lock()

    def move(index):
        with lock:
            active.append(index)
            most[0] = max(most[0], len(active))
        job.note("most", most[0])
        with lock:
            active.remove(index)

    job.upload = move
    job.execute(200, batch_size=200)
    assert max(job.notes("most")) <= MAX_TRANSFERS


def test_bytes_that_are_fetched_ahead_are_limited(job):
    job.size = lambda index: MAX_BYTES // 2 if index != 4 else MAX_BYTES + 1

    def step(index):
        fetched = set(job.notes("fetch"))
        assert len([other for other in fetched if other > index]) <= 2
        assert 4 not in fetched or index >= 4

    job.step = step
    assert set(job.execute(8).values()) == {"ok"}


def test_files_of_unknown_size_are_fetched_ahead(job):
    job.size = lambda index: -1
    job.step = lambda index: (
        index == 0 and wait_for(lambda: len(job.notes("fetch")) == 8, "fetches", PATIENCE)
    )
    assert set(job.execute(8).values()) == {"ok"}


def test_only_the_input_that_kills_its_worker_is_at_fault(job):
    """Inputs whose files were being stored are executed again."""
    step = job.step

    def die(index):
        step(index)
        if index == 3:
            if not (job.folder / "dying").exists():
                wait_for(lambda: len(job.notes("hung")) == 3, "three uploads", PATIENCE)
            job.mark("dying")
            os._exit(7)

    def hang_until_dead(index):
        if not (job.folder / "dying").exists():
            job.note("hung", index)
            threading.Event().wait(PATIENCE)

    job.step, job.upload = die, hang_until_dead
    kinds = job.execute(8)
    assert kinds == dict.fromkeys(range(8), "ok") | {3: "crashed"}
    assert set(job.notes("hung")) == {0, 1, 2}


def test_a_killed_worker_loses_no_input(job):
    """It is killed while it waits for its uploads: only the input that it shows is at fault."""

    def kill_once(index):
        if index == 7 and not (job.folder / "killed").exists():
            job.mark("killed")
            os.kill(os.getpid(), signal.SIGKILL)

    job.upload = kill_once
    assert job.execute(8, retries=1) == dict.fromkeys(range(8), "ok")
    assert max(Counter(job.notes("step")).values()) <= 2


def test_an_upload_that_fails_is_that_inputs_outcome(job):
    def fail(index):
        if index == 2:
            raise ValueError("no access")

    job.upload = fail
    kinds = job.execute(8)
    assert kinds == dict.fromkeys(range(8), "ok") | {2: "failed"}
    assert job.outcomes[2].message == "no access"


def test_an_input_is_fetched_alone_if_those_fetched_ahead_fill_the_disk(job):
    on_disk = set()

    def fetch(index):
        job.note("fetch", index)
        if len(on_disk) >= 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        on_disk.add(index)
        return index

    def discard(index):
        job.note("discard", index)
        on_disk.discard(index)

    job.fetch, job.discard, job.step = fetch, discard, on_disk.discard
    assert job.execute(8) == dict.fromkeys(range(8), "ok")
    assert job.notes("discard")


def test_a_worker_that_a_step_breaks_still_stores_its_files(job):
    """Each step leaves the worker in a state that it cannot restore."""

    def lower_priority(index):
        os.nice(1)
        job.note("process", os.getpid())

    job.step = lower_priority
    assert job.execute(6) == dict.fromkeys(range(6), "ok")
    assert len(set(job.notes("process"))) == 6
    assert Counter(job.notes("step")) == dict.fromkeys(range(6), 1)


def test_a_fork_of_a_step_does_not_return(job):
    def fork(index):
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)

    job.step = fork
    assert job.execute(16, num_workers=2) == dict.fromkeys(range(16), "ok")
