"""The DataLoader whose workers run inputs, and how its process hears of their deaths."""

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from batchmill.execution.isolation.worker import GuardedInputs
from batchmill.execution.isolation.worker_channel import WorkerChannel

_POLL_SECONDS = 0.02
# Whoever's death no signal tells, as in a thread, is found out so much later.
_RECEIVE_SECONDS = 0.5
_handling: Any = signal_handling


class WorkerDiedError(Exception):
    """A worker of a DataLoader has died."""


class Batches(_MultiProcessingDataLoaderIter):
    """A DataLoader's iterator that raises WorkerDiedError where it waits, and nowhere else.

    Torch's own handler of SIGCHLD raises at whatever line this process has come to: if that has
    just taken the lock of a queue, nobody gives it back.
    """

    _waits = False

    @property
    def workers(self) -> Sequence[Any]:
        """The workers' processes, as multiprocessing has them."""
        return self._workers

    def end(self) -> None:
        """Have the workers end, once they are idle."""
        self._shutdown_workers()

    def abandon(self) -> None:
        """Give back what workers that were killed have left.

        They may have held the lock of what torch would tell them their end with.
        """
        self._shutdown = True
        if self._worker_pids_set:
            self._worker_pids_set = False
            _handling._remove_worker_pids(id(self))
        for queue in self._index_queues:
            queue.cancel_join_thread()
            queue.close()

    def _try_get_data(self, timeout: float = _RECEIVE_SECONDS) -> tuple[bool, Any]:
        if not all(worker.is_alive() for worker in self.workers):
            raise WorkerDiedError
        self._waits = True
        try:
            arrived: tuple[bool, Any] = super()._try_get_data(timeout)  # type: ignore[no-untyped-call]
            return arrived
        except RuntimeError as error:
            if "DataLoader worker" in str(error):
                raise WorkerDiedError from error
            raise
        finally:
            self._waits = False

    def note_death(self, *_: object) -> None:
        """Leave off waiting if a worker has died; the handler of SIGCHLD.

        What a dead worker has begun to send would be waited for in vain.
        """
        if self._waits and any(_has_ended(worker.pid) for worker in self.workers):
            self._waits = False
            raise WorkerDiedError


def _has_ended(pid: int) -> bool:
    """Tell whether a child has ended, and leave it to others to take note of that."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


@contextmanager
def iterating(
    inputs: GuardedInputs,
    batches: Sequence[Sequence[int]],
    num_workers: int,
    collate: Callable[[Any], Any],
    begin: Callable[[int], None],
) -> Iterator[Batches]:
    """Fork the workers of a DataLoader, and give its iterator, which the caller brings to an end.

    Within the block, no worker's death raises an error but where the iterator waits for one.
    """
    with _telling_of_deaths() as listeners:
        with warnings.catch_warnings():
            # More workers than cores: the user's choice, for steps that wait.
            warnings.simplefilter("ignore", UserWarning)
            loader: DataLoader[Any] = DataLoader(
                inputs,  # type: ignore[arg-type]  # Any map-style object will do; torch says so.
                batch_sampler=batches,  # type: ignore[arg-type]  # Torch says lists; ranges do.
                num_workers=num_workers,
                collate_fn=collate,
                # One slow input must not hold up the batches behind it.
                in_order=False,
                # Measured in a Ray worker: first item after 0.1 s, against 1 to 2 s otherwise.
                multiprocessing_context="fork",
                worker_init_fn=begin,
            )
            with _without_torchs_handler():
                iterator = Batches(loader)
        listeners.append(iterator.note_death)
        yield iterator


def as_it_is(batch: list[int]) -> list[int]:
    """Leave a batch of receipts what it is: the DataLoader's collate function."""
    return batch


def wait_until_idle(stations: Sequence[WorkerChannel], processes: Sequence[Any]) -> None:
    """Wait until no living worker is at an input; the watchdog sees to it that this ends."""
    while any(
        station.occupied and process.is_alive()
        for station, process in zip(stations, processes, strict=True)
    ):
        time.sleep(_POLL_SECONDS)


@contextmanager
def _telling_of_deaths() -> Iterator[list[Callable[..., None]]]:
    """Give the list of those that are called when a child ends, instead of the handler there was.

    In a thread other than the main one, where there are no handlers, nobody is.
    """
    listeners: list[Callable[..., None]] = []

    def tell(number: int, frame: object) -> None:
        for listener in listeners:
            listener(number, frame)

    if threading.current_thread() is not threading.main_thread():
        yield listeners
        return
    previous = signal.signal(signal.SIGCHLD, tell)
    try:
        yield listeners
    finally:
        # None: what the handler was, Python cannot say.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL if previous is None else previous)


@contextmanager
def _without_torchs_handler() -> Iterator[None]:
    """Keep torch from taking SIGCHLD, as it does for the first DataLoader of a process."""
    was_set = _handling._SIGCHLD_handler_set
    _handling._SIGCHLD_handler_set = True
    try:
        yield
    finally:
        _handling._SIGCHLD_handler_set = was_set
