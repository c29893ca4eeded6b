"""Watches workers: collects their outcomes, and kills workers that exceed a limit."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Literal

from batchmill.outcome import Outcome
from batchmill.workers.control import SharedFlag, Stop
from batchmill.workers.memory_usage import headroom
from batchmill.workers.processes import ChildProcess, end_after
from batchmill.workers.worker import DUMP_SIGNAL
from batchmill.workers.worker_channel import Occupied, WorkerChannel
from batchmill.workers.worker_exit import WorkerExit

logger = logging.getLogger(__name__)

_CHECK_SECONDS = 0.1
# Tiny inputs give thousands of outcomes per second, long inputs only a few.
_GATHER_SECONDS, _MAX_GATHER_SECONDS = 0.004, 0.05
# After this number of outcomes, the watchdog lets the thread run that feeds the workers.
_GATHER_OUTCOMES = 64
_DUMP_SECONDS = 2.0
# A timer ends the process this long after a batch's timeout, even if the watchdog cannot run.
_LAST_RESORT_SECONDS = 30.0
# The longest time to fetch and read an input, or to place its files. It is not `--timeout`, because
# a slow store must not look like a slow step.
TRANSFER_SECONDS = 3600.0
# A worker hangs if no worker was busy and no outcome arrived for this number of checks.
_MAX_QUIET_CHECKS = 300
# With less memory left than this, the kernel or Ray may soon kill a process, perhaps the wrong one.
# Ray ends the whole shard when 5 % of the memory is left.
_LOW_MEMORY_BYTES, _LOW_MEMORY_SHARE = 256 * 2**20, 0.06


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one input: memory in bytes, seconds in the step. None means no limit.

    A worker with an async step cancels an input itself. If the step ignores that for
    `grace_seconds`, the worker is killed.
    """

    timeout_seconds: float | None = None
    memory_bytes: int | None = None
    grace_seconds: float = 0.0


@dataclass
class BatchMonitor:
    """The batch that the shard's own process is processing, and when it began.

    If the batch exceeds the timeout, the watchdog's thread calls `overdue` with the indices of its
    inputs. That function must end the process, because nothing else can end the batch.
    """

    overdue: Callable[[Sequence[int]], None]
    timeout_seconds: float | None
    at: tuple[float, Sequence[int]] | None = None

    @contextmanager
    def working_on(self, indices: Sequence[int]) -> Iterator[None]:
        """Record that a batch is processed during the block."""
        self.at = (time.monotonic(), indices)
        seconds = self.timeout_seconds
        latest = None if seconds is None else seconds + _LAST_RESORT_SECONDS
        try:
            with end_after(latest):
                yield
        finally:
            self.at = None

    def check(self) -> None:
        """Call `overdue` if the current batch exceeds the timeout."""
        at, seconds = self.at, self.timeout_seconds
        if at and seconds is not None and time.monotonic() - at[0] > seconds:
            self.overdue(at[1])


@dataclass
class Watchdog:
    """A thread that watches the workers of one DataLoader until `stop` is called.

    It calls `receive` with the outcomes that have arrived. The workers are in the order of
    `channels`. The batch that this process is processing is in `batch_monitor`.
    """

    channels: Sequence[WorkerChannel]
    workers: Sequence[ChildProcess]
    limits: Limits
    drain: SharedFlag
    stop_request: Stop
    receive: Callable[[Sequence[tuple[int, Outcome]]], None]
    batch_monitor: BatchMonitor | None
    killed: dict[int, WorkerExit] = field(default_factory=dict)
    error: BaseException | None = None
    _ended: threading.Event = field(default_factory=threading.Event)
    _quiet_checks: int = 0
    _seen: dict[int, Occupied] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # `receive` runs in the caller's context, which has Prefect's settings, for example.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._serve,), name="watchdog", daemon=True
        )

    def start(self) -> None:
        """Start the thread. Call this after forking the workers: a fork does not copy threads."""
        self._thread.start()

    def stop(self) -> None:
        """Collect the remaining outcomes, and end the thread. Raise any error of `receive`."""
        self._ended.set()
        self._thread.join()
        if self.error:
            raise self.error

    def _serve(self) -> None:
        try:
            next_check = 0.0
            pause = _GATHER_SECONDS
            while not self._ended.wait(pause):
                arrived = self._collect()
                self._quiet_checks = 0 if arrived else self._quiet_checks
                pause = _GATHER_SECONDS if arrived else min(2 * pause, _MAX_GATHER_SECONDS)
                if time.monotonic() >= next_check:
                    self._check()
                    next_check = time.monotonic() + _CHECK_SECONDS
            while self._collect():
                pass
        except BaseException as error:
            self.error = error
            # Without the watchdog, outcomes would stay in the journals, and workers would have no
            # time limit.
            self._kill_all()

    def _collect(self) -> int:
        """Collect the outcomes that have arrived, and return their number."""
        count = 0
        for worker, channel in zip(self.workers, self.channels, strict=True):
            try:
                arrived = channel.receive()
            except (EOFError, ValueError, TypeError):
                worker.kill_tree()  # A step has overwritten the worker's journal.
                continue
            count += len(arrived)
            if self.killed:  # An outcome that arrives after the kill is ignored.
                killed = {worker_exit.index for worker_exit in self.killed.values()}
                arrived = [pair for pair in arrived if pair[0] not in killed]
            for start in range(0, len(arrived), _GATHER_OUTCOMES):
                self.receive(arrived[start : start + _GATHER_OUTCOMES])
                time.sleep(0)
        return count

    def _check(self) -> None:
        if self.stop_request.requested:
            self._apply_stop()
        for number, channel in enumerate(self.channels):
            channel.bound_log()
            occupied = channel.occupied
            # Trust the slot only if it was the same at the last check. It may be half written now.
            if occupied and self._seen.get(number) == occupied and number not in self.killed:
                self._check_limits(number, channel, occupied)
            if occupied:
                self._seen[number] = occupied
        if self.batch_monitor:
            self.batch_monitor.check()
        self._check_machine_memory()
        self._check_silence()

    def _apply_stop(self) -> None:
        self.drain.set()
        if not self.stop_request.overdue:
            return
        for worker, channel in zip(self.workers, self.channels, strict=True):
            if channel.occupied:
                worker.kill_tree()

    def _check_silence(self) -> None:
        """Kill all workers if all of them are silent. New workers then execute their inputs."""
        at_work = any(channel.occupied for channel in self.channels)
        is_processing = self.batch_monitor is not None and self.batch_monitor.at is not None
        self._quiet_checks = 0 if at_work or is_processing else self._quiet_checks + 1
        if self._quiet_checks > _MAX_QUIET_CHECKS:
            self._kill_all()

    def _kill_all(self) -> None:
        for worker in self.workers:
            worker.kill_tree()

    def _check_limits(self, number: int, channel: WorkerChannel, occupied: Occupied) -> None:
        timeout, memory = self.limits.timeout_seconds, self.limits.memory_bytes
        # Check memory first, because an input that fills the memory is also slow.
        if memory is not None:
            used = channel.used_bytes(self.workers[number].pid, memory)
            if used > memory:
                limit = f"{memory / 2**20:,.0f} MiB"
                message = f"used {used / 2**20:,.0f} MiB of memory; --memory-limit is {limit}"
                self._kill(number, occupied, "oom", message)
                return
        if timeout is None:
            return
        seconds = time.monotonic() - occupied.started
        if occupied.is_paused:
            return
        if occupied.in_step and seconds > timeout + self.limits.grace_seconds:
            message = f"still running after {timeout:g} s (--timeout)"
            self._kill(number, occupied, "timeout", message)
        elif not occupied.in_step and seconds > TRANSFER_SECONDS:
            message = f"its files were not read or stored after {TRANSFER_SECONDS:g} s"
            self._kill(number, occupied, "timeout", message)

    def _check_machine_memory(self) -> None:
        room = headroom()
        if room is None:
            return
        low = max(_LOW_MEMORY_BYTES, int(room.total * _LOW_MEMORY_SHARE))
        if room.available > low:
            return
        at_work = [
            (channel.used_bytes(self.workers[number].pid, _LOW_MEMORY_BYTES), number, occupied)
            for number, channel in enumerate(self.channels)
            if (occupied := channel.occupied) and number not in self.killed
        ]
        used, number, occupied = max(at_work, default=(0, 0, None))
        # Killing a small worker does not help if other processes use the memory.
        if occupied and used > _LOW_MEMORY_BYTES:
            message = (
                f"used {used / 2**20:,.0f} MiB of memory, and the machine had only "
                f"{room.available / 2**20:,.0f} MiB left"
            )
            self._kill(number, occupied, "oom", message)

    def _kill(
        self, number: int, occupied: Occupied, kind: Literal["timeout", "oom"], message: str
    ) -> None:
        channel, worker = self.channels[number], self.workers[number]
        if not worker.pause():
            # It has died for another reason, or waits for a disk and would be suspended later.
            worker.resume()
            return
        if channel.occupied != occupied:
            worker.resume()  # It has just finished the input.
            return
        error = "Timeout" if kind == "timeout" else "OutOfMemory"
        seconds = time.monotonic() - occupied.started
        # The step has kept the memory of other inputs if this one has not begun.
        index = occupied.index if occupied.has_begun else None
        self.killed[number] = WorkerExit(index, kind, error, message, seconds=seconds)
        if kind == "timeout":
            self.drain.set()  # The worker must not begin another input while it writes its stack.
            self._dump_stack(worker, channel.log)
        worker.kill_tree()

    def _dump_stack(self, worker: ChildProcess, log: int) -> None:
        """Make a suspended worker write its stack to its log, and wait a moment for it."""
        before = os.fstat(log).st_size
        worker.send(DUMP_SIGNAL)
        worker.resume()
        deadline = time.monotonic() + _DUMP_SECONDS
        while time.monotonic() < deadline and os.fstat(log).st_size == before:
            time.sleep(0.01)
        time.sleep(0.02)
