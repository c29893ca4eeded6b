"""The DataLoader whose workers run inputs, and how its process waits for them."""

import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from torch.utils.data import DataLoader

from batchmill.isolation.station import Station
from batchmill.isolation.worker import GuardedInputs

_POLL_SECONDS = 0.02


def iterate(
    inputs: GuardedInputs,
    batches: Sequence[Sequence[int]],
    num_workers: int,
    collate: Callable[[Any], Any],
    begin: Callable[[int], None],
) -> Any:
    """Fork the workers of a DataLoader, and return its iterator."""
    with warnings.catch_warnings():
        # More workers than cores: the user's choice, for steps that wait.
        warnings.simplefilter("ignore", UserWarning)
        return iter(
            DataLoader(
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
        )


def as_it_is(batch: list[int]) -> list[int]:
    """Leave a batch of receipts what it is: the DataLoader's collate function."""
    return batch


def wait_until_idle(stations: Sequence[Station], processes: Sequence[Any]) -> None:
    """Wait until no living worker is at an input; the watchdog sees to it that this ends."""
    while any(
        station.occupied and process.is_alive()
        for station, process in zip(stations, processes, strict=True)
    ):
        time.sleep(_POLL_SECONDS)


@contextmanager
def deaths_are_no_errors() -> Iterator[None]:
    """Keep torch from raising at whatever line is reached when another worker dies.

    Its handler of SIGCHLD raises RuntimeError in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # There, torch has no handler.
        return
    previous = signal.getsignal(signal.SIGCHLD)
    while signal.getsignal(signal.SIGCHLD) is not signal.SIG_DFL:
        with suppress(RuntimeError):  # It may come in this very line.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, previous)
