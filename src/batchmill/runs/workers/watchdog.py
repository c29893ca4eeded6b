"""Watches workers: collects their outcomes, and kills workers that exceed a limit."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from batchmill.core.outcome import Outcome
from batchmill.runs.workers.memory_usage import headroom
from batchmill.runs.workers.processes import ChildProcess
from batchmill.runs.workers.stop_flags import SharedFlag, Stop
from batchmill.runs.workers.worker import DUMP_SIGNAL
from batchmill.runs.workers.worker_channel import Slot, WorkerChannel
from batchmill.runs.workers.worker_exit import WorkerExit

_CHECK_SECONDS = 0.1
# Tiny inputs give thousands of outcomes per second, long inputs only a few.
_GATHER_SECONDS, _MAX_GATHER_SECONDS = 0.004, 0.05
# After this number of outcomes, the watchdog lets the thread run that feeds the workers.
_GATHER_OUTCOMES = 64
_DUMP_SECONDS = 2.0
# The longest time to fetch and read an input, or to place its files. It is not `--timeout`, because
# a slow store must not look like a slow step.
TRANSFER_SECONDS = 3600.0
# A worker hangs if no worker was busy and no outcome arrived for this number of checks.
_MAX_QUIET_CHECKS = 300
# An event loop that did not run for this time is silent.
_SILENT_SECONDS = 5.0
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


class _Memory(NamedTuple):
    """The memory of a worker in bytes, now and before its current inputs, which have begun."""

    used: int
    begun: Sequence[Slot]
    before: int


_NO_MEMORY = _Memory(0, (), 0)


@dataclass(kw_only=True)
class Watchdog:
    """A thread that watches the workers of one DataLoader until `stop` is called.

    Attributes:
        channels: The channels of the workers.
        workers: The workers, in the same order.
        limits: The limits of one input.
        drain: Set to let the workers begin no further input.
        stop_request: The request to stop the shard.
        receive: Called with the outcomes that have arrived.
        warn: Called with a warning about a worker.
        feed: Called very often, to let workers begin inputs. Returns False if none will follow.
        is_waiting: Returns True while this process waits for workers.
        killed: Why workers were killed, by their number.
    """

    channels: Sequence[WorkerChannel]
    workers: Sequence[ChildProcess]
    limits: Limits
    drain: SharedFlag
    stop_request: Stop
    receive: Callable[[Sequence[tuple[int, Outcome]]], None]
    warn: Callable[[str], None]
    feed: Callable[[], bool]
    is_waiting: Callable[[], bool]
    killed: dict[int, WorkerExit] = field(default_factory=dict)
    error: BaseException | None = None
    _ended: threading.Event = field(default_factory=threading.Event)
    _quiet_checks: int = 0
    _seen: dict[int, Sequence[Slot]] = field(default_factory=dict)
    _memory: dict[int, _Memory] = field(default_factory=dict)

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
                if not self.feed():
                    self.drain.set()
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
                arrived, warnings = channel.receive()
            except (EOFError, ValueError, TypeError):
                worker.kill_tree()  # A step has overwritten the worker's journal.
                continue
            for warning in warnings:
                self.warn(warning)
            count += len(arrived)
            if self.killed:  # An outcome that arrives after the kill is ignored.
                killed = {worker_exit.cause for worker_exit in self.killed.values()}
                arrived = [pair for pair in arrived if pair[0] not in killed]
            for start in range(0, len(arrived), _GATHER_OUTCOMES):
                self.receive(arrived[start : start + _GATHER_OUTCOMES])
                time.sleep(0)
        return count

    def _check(self) -> None:
        if self.stop_request.requested:
            self._apply_stop()
        for number in range(len(self.channels)):
            if number not in self.killed:
                self._check_worker(number)
        self._check_machine_memory()
        self._check_silence()

    def _apply_stop(self) -> None:
        self.drain.set()
        if not self.stop_request.overdue:
            return
        for worker, channel in zip(self.workers, self.channels, strict=True):
            if channel.in_use or channel.setup_since:
                worker.kill_tree()

    def _check_silence(self) -> None:
        """Kill all workers if all of them are silent. New workers then execute their inputs."""
        is_quiet = self.is_waiting() and not any(map(_is_at_work, self.channels))
        self._quiet_checks = self._quiet_checks + 1 if is_quiet else 0
        if self._quiet_checks > _MAX_QUIET_CHECKS:
            self._kill_all()

    def _kill_all(self) -> None:
        for worker in self.workers:
            worker.kill_tree()

    def _check_worker(self, number: int) -> None:
        channel = self.channels[number]
        channel.bound_log()
        slots = channel.in_use
        # Trust a slot only if it was the same at the last check. It may be half written now.
        steady = [slot for slot in slots if slot in self._seen.get(number, ())]
        self._seen[number] = slots
        # Check memory first, because an input that fills the memory is also slow.
        worker_exit = self._check_memory(number) or self._check_time(channel, steady)
        if worker_exit:
            self._kill(number, worker_exit)

    def _check_memory(self, number: int) -> WorkerExit | None:
        """Return why a worker must be killed that is above its limit for a second time.

        An input that has grown by the limit since it began is at fault. If several inputs are in
        progress, any of them may be. Else earlier inputs have left the memory: new workers
        execute the next inputs.
        """
        limit, channel = self.limits.memory_bytes, self.channels[number]
        if limit is None or channel.setup_since:
            return None
        used = channel.used_bytes(self.workers[number].pid, limit)
        begun = [slot for slot in channel.in_use if slot.has_begun]
        last = self._memory.get(number, _NO_MEMORY)
        before = min(used, last.before if begun == last.begun else last.used)
        self._memory[number] = _Memory(used, begun, before)
        if min(used, last.used) <= limit:
            return None
        if len(begun) < 2 and used - before <= limit:
            self.drain.set()
            return None
        message = f"used {_mib(used)} of memory; --memory-limit is {_mib(limit)}"
        return _exceeded("oom", message, begun[0] if len(begun) == 1 else None)

    def _check_time(self, channel: WorkerChannel, steady: Sequence[Slot]) -> WorkerExit | None:
        """Return why a worker must be killed that exceeds a limit of time."""
        timeout, now = self.limits.timeout_seconds, time.monotonic()
        slow = [s for s in steady if now - s.started > TRANSFER_SECONDS and not s.in_step]
        if slow:
            message = f"its files were not read or stored after {TRANSFER_SECONDS:g} s"
            return _exceeded("timeout", message, slow[0])
        if timeout is None:
            return None
        if channel.setup_since and now - channel.setup_since > timeout:
            message = (
                "the step was not opened or closed (__init__, __aenter__, __aexit__) after "
                f"{timeout:g} s (--timeout)"
            )
            return _exceeded("timeout", message, None)
        message = f"still running after {timeout:g} s (--timeout)"
        begun = [slot for slot in steady if slot.in_step]
        if channel.blocked_since and begun and now - channel.blocked_since > timeout:
            # One input blocks the event loop. With its stack, the worker records which one.
            return _exceeded("timeout", message, begun[0] if len(begun) == 1 else None)
        longest = timeout + self.limits.grace_seconds
        slow = [slot for slot in begun if now - slot.started > longest]
        return _exceeded("timeout", message, slow[0]) if slow else None

    def _check_machine_memory(self) -> None:
        room = headroom()
        if room is None:
            return
        low = max(_LOW_MEMORY_BYTES, int(room.total * _LOW_MEMORY_SHARE))
        if room.available > low:
            return
        at_work = [
            (channel.used_bytes(self.workers[number].pid, _LOW_MEMORY_BYTES), number)
            for number, channel in enumerate(self.channels)
            if channel.in_use and number not in self.killed
        ]
        used, number = max(at_work, default=(0, 0))
        # Killing a small worker does not help if other processes use the memory.
        if used > _LOW_MEMORY_BYTES:
            left = f"the machine had only {_mib(room.available)} left"
            self._kill(number, _exceeded("oom", f"used {_mib(used)} of memory, and {left}", None))

    def _kill(self, number: int, worker_exit: WorkerExit) -> None:
        channel, worker = self.channels[number], self.workers[number]
        if not worker.pause():
            # It has died for another reason, or waits for a disk and would be suspended later.
            worker.resume()
            return
        current = {slot.input: slot for slot in channel.in_use}
        cause = worker_exit.cause
        if cause is not None and current.get(cause) not in self._seen[number]:
            worker.resume()  # It has just finished the input.
            return
        begun = tuple(index for index, slot in current.items() if slot.has_begun)
        if worker_exit.kind == "timeout":
            self.drain.set()  # The worker must not begin another input while it writes its stack.
            self._dump_stack(worker, channel.log)
            if cause is None and not channel.setup_since:
                cause = channel.blocker
        if cause is None and len(begun) == 1:
            (cause,) = begun
        started = current[cause].started if cause in current else time.monotonic()
        seconds = time.monotonic() - started
        self.killed[number] = replace(worker_exit, begun=begun, cause=cause, seconds=seconds)
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


def _exceeded(kind: Literal["timeout", "oom"], message: str, slot: Slot | None) -> WorkerExit:
    error = "Timeout" if kind == "timeout" else "OutOfMemory"
    return WorkerExit(kind, error, message, cause=slot.input if slot else None)


def _is_at_work(channel: WorkerChannel) -> bool:
    """Return whether a worker executes an input, sets up its step, or waits in its event loop."""
    return bool(
        channel.in_use
        or channel.setup_since
        or time.monotonic() - channel.blocked_since < _SILENT_SECONDS
    )


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
