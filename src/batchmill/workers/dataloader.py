"""Starts the DataLoader whose workers run inputs, and reports when a worker dies."""

import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from torch.utils.data import DataLoader

from batchmill.workers.guarded_inputs import GuardedInputs
from batchmill.workers.private_api import (
    LoaderIterator,
    WorkerDiedError,
    without_torch_sigchld_handler,
)
from batchmill.workers.worker_channel import WorkerChannel

__all__ = ["LoaderIterator", "WorkerDiedError", "iterating", "keep_batch", "wait_until_idle"]

_POLL_SECONDS = 0.02


@contextmanager
def iterating(
    inputs: GuardedInputs,
    batches: Iterator[Sequence[int]],
    num_workers: int,
    collate: Callable[[Any], Any],
    begin: Callable[[int], None],
) -> Iterator[LoaderIterator]:
    """Fork the workers of a DataLoader and yield its iterator. The caller must end the iterator.

    During the block, a worker's death raises an error only while the iterator waits for a batch.

    Args:
        inputs: The inputs, as a torch Dataset.
        batches: For each batch, the indices of its inputs. A batch is taken only when a worker
            needs it.
        num_workers: The number of worker processes, at least 1.
        collate: Collates a worker's items into a batch.
        begin: Called in each worker, with the worker's number, before its first input.
    """
    with _sigchld_handlers() as handlers:
        with warnings.catch_warnings():
            # torch warns if there are more workers than cores. That is the user's choice, for
            # steps that wait.
            warnings.simplefilter("ignore", UserWarning)
            loader: DataLoader[Any] = DataLoader(
                inputs,  # type: ignore[arg-type]  # torch documents that any map-style object works.
                batch_sampler=batches,  # type: ignore[arg-type]  # torch's types exclude ranges.
                num_workers=num_workers,
                collate_fn=collate,
                # One slow input must not delay the batches behind it.
                in_order=False,
                # Measured in a Ray worker: the first item arrives after 0.1 s with fork, and after
                # 1 to 2 s with other start methods.
                multiprocessing_context="fork",
                worker_init_fn=begin,
            )
            with without_torch_sigchld_handler():
                iterator = LoaderIterator(loader)
        handlers.append(iterator.on_child_exit)
        yield iterator


def keep_batch(batch: list[int]) -> list[int]:
    """Return a batch of indices unchanged. This is the collate function of non-batch steps."""
    return batch


def wait_until_idle(channels: Sequence[WorkerChannel], processes: Sequence[Any]) -> None:
    """Wait until no living worker executes an input. The watchdog limits the time."""
    while any(
        channel.occupied and process.is_alive()
        for channel, process in zip(channels, processes, strict=True)
    ):
        time.sleep(_POLL_SECONDS)


@contextmanager
def _sigchld_handlers() -> Iterator[list[Callable[[int, FrameType | None], None]]]:
    """Yield the list of functions to call when a child process ends.

    They replace the previous handler of SIGCHLD. Outside the main thread the list has no effect,
    because Python runs signal handlers only in the main thread.
    """
    handlers: list[Callable[[int, FrameType | None], None]] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        for handler in handlers:
            handler(number, frame)

    if threading.current_thread() is not threading.main_thread():
        yield handlers
        return
    previous = signal.signal(signal.SIGCHLD, on_signal)
    try:
        yield handlers
    finally:
        # `signal.signal` returns None if the previous handler was not installed from Python.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL if previous is None else previous)
