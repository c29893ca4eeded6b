"""Batches of samples while workers die, stores are slow and devices hang."""

import os
import subprocess
import threading
from collections import Counter

import torch
from harness.live import wait_for

from batchmill.core.outcome import Outcome, UnstoredOutcome
from batchmill.runs.workers import loaded_batches
from batchmill.runs.workers.isolated_executor import IsolatedExecutor
from batchmill.runs.workers.loaded_batches import Batch, BatchCallbacks, BegunBatch, Sample
from batchmill.runs.workers.watchdog import Limits, Watchdog
from batchmill.runs.workers.worker import this_worker

OK = Outcome("a", "a", "ok", 1, 0.0, 0.0, "here")


def executor(count, *, load, begin, store=list, overdue=print, timeout=60.0):
    """Return an executor of batches, and the list of the outcomes that it will deliver."""
    seen = []

    def run(index):
        this_worker.channel.begin_step()
        load(index)
        return Sample(index, torch.full((10,), float(index)), None)

    isolated = IsolatedExecutor(
        count=count,
        run=run,
        lost=lambda index, death: OK._replace(input=str(index), kind=death.kind),
        deliver=seen.extend,
        limits=Limits(timeout_seconds=timeout),
        retries=0,
        processing=BatchCallbacks(
            collate=torch.stack, begin=begin, store=store, overdue=overdue, end=print
        ),
    )
    return isolated, seen


def done(batch):
    """Return the outcomes of a batch, each with the input that its tensor names."""
    outcomes = [OK._replace(input=str(int(row[0]))) for row in batch.data]
    assert [int(outcome.input) for outcome in outcomes] == batch.indices
    return outcomes


def finished(batch):
    outcomes = done(batch)
    return BegunBatch(batch.indices, lambda: outcomes, is_in_flight=False)


def test_workers_that_wait_for_a_slow_store_are_not_replaced(tmp_path, monkeypatch):
    """The files of the first batch are stored for longer than a silent worker may live."""
    checks = []
    check_silence = Watchdog._check_silence
    monkeypatch.setattr("batchmill.runs.workers.watchdog._MAX_QUIET_CHECKS", 3)
    monkeypatch.setattr(
        Watchdog, "_check_silence", lambda watchdog: (check_silence(watchdog), checks.append(1))
    )

    def load(index):
        with (tmp_path / "log").open("a") as log:
            log.write(f"{index}\n")

    def begin(batch):
        outcomes = [UnstoredOutcome(1, [], lambda _, done=one: done) for one in done(batch)]
        return BegunBatch(batch.indices, lambda: outcomes, is_in_flight=False)

    def store(outcomes):
        before = len(checks)
        if before < 20:
            wait_for(lambda: len(checks) > before + 10, "checks of the watchdog", 60)
        return [outcome.finish(None) for outcome in outcomes]

    isolated, seen = executor(24, load=load, begin=begin, store=store)
    isolated.execute(batch_size=2, num_workers=2)
    assert sorted(int(outcome.input) for outcome in seen) == list(range(24))
    assert set(Counter((tmp_path / "log").read_text().split()).values()) == {1}


def test_a_batch_whose_worker_died_is_loaded_again(monkeypatch):
    monkeypatch.setattr(loaded_batches, "_END_SECONDS", 0.0)
    dead, alive = (subprocess.Popen(["sleep", "60"]) for _ in range(2))
    dead.kill()
    dead.wait()
    batch = Batch([0, 1], [None, None], pickled=_connects_to_nobody(), worker=dead.pid)
    assert batch.load() is None
    assert batch._replace(pickled=b"not a pickle").load().fault.error == "UnpicklingError"
    assert batch._replace(worker=alive.pid).load().fault.error == "ConnectionRefusedError"
    alive.kill()
    alive.wait()


def _connects_to_nobody():
    """Return the pickle of an object whose worker cannot be reached."""
    import pickle

    class Tensor:
        def __reduce__(self):
            return _refuse, ()

    return pickle.dumps(Tensor())


def _refuse():
    raise ConnectionRefusedError("the worker has ended")


def test_the_crash_of_an_input_is_recorded_while_a_batch_hangs_on_the_device(tmp_path):
    """Input 1 kills its worker while the batch of input 0 is on the device, where it hangs."""
    begun, overdue = tmp_path / "begun", threading.Event()
    known = []

    def load(index):
        if index == 1:
            wait_for(begun.exists, "the first batch", 60)
            os._exit(3)

    def begin(batch):
        begun.touch()
        outcomes = done(batch)

        def finish():
            assert overdue.wait(60)
            return outcomes

        return BegunBatch(batch.indices, finish, is_in_flight=True)

    def end(indices):
        known.extend([*indices, *(f"{one.input} {one.kind}" for one in seen)])
        overdue.set()

    isolated, seen = executor(2, load=load, begin=begin, overdue=end, timeout=1.0)
    isolated.execute(batch_size=1, num_workers=1)
    assert known[0] == 0
    assert {outcome.input: outcome.kind for outcome in seen} == {"0": "ok", "1": "crashed"}
