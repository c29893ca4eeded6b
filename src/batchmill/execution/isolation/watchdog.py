"""Watches workers: takes their outcomes, and kills one that is over its time or memory."""

import faulthandler
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from typing import Literal

from batchmill.execution.isolation.memory import headroom
from batchmill.execution.isolation.processes import kill_tree, pause, resume
from batchmill.execution.isolation.stop import Stop
from batchmill.execution.isolation.worker import DUMP_SIGNAL, DrainFlag
from batchmill.execution.isolation.worker_channel import Occupied, WorkerChannel
from batchmill.outcome import Outcome

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.1
# Outcomes of tiny inputs come by the thousand, those of long ones rarely.
_GATHER_SECONDS, _MAX_GATHER_SECONDS = 0.004, 0.05
# After so many, the thread that feeds the workers has its turn.
_GATHER_OUTCOMES = 64
_DUMP_SECONDS = 0.5
# So long after its time a batch's process ends whatever the watchdog does.
_LAST_RESORT_SECONDS = 30.0
# For so many looks nobody at work and nothing arrived, though work is left: a worker hangs.
_MAX_QUIET_LOOKS = 300
# With less than this left, others are about to kill, and may choose the wrong process: the kernel,
# and Ray, which ends the whole shard when a twentieth of the memory is left.
_LOW_MEMORY_BYTES, _LOW_MEMORY_SHARE = 256 * 2**20, 0.06


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one input may use: seconds of wall time, bytes of memory; None: no limit."""

    timeout_seconds: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class KillReason:
    """Why the watchdog killed a worker, and at which input."""

    index: int
    kind: Literal["timeout", "oom"]
    message: str


@dataclass
class BatchMonitor:
    """What the process that runs a shard does itself: the batch it is at, and since when.

    `overdue` is called with the indices of a batch's inputs when it takes too long, from the
    watchdog's thread; nothing else can end that but the end of the process.
    """

    overdue: Callable[[Sequence[int]], None] | None = None
    timeout_seconds: float | None = None
    at: tuple[float, Sequence[int]] | None = None

    @contextmanager
    def working_on(self, indices: Sequence[int]) -> Iterator[None]:
        """Say that a batch is being processed, within the block."""
        self.at = (time.monotonic(), indices)
        seconds = self.timeout_seconds
        if seconds is not None:
            # What holds the interpreter's lock keeps the watchdog from it: this one needs no lock.
            with suppress(ValueError, OSError, AttributeError):
                faulthandler.dump_traceback_later(seconds + _LAST_RESORT_SECONDS, exit=True)
        try:
            yield
        finally:
            self.at = None
            if seconds is not None:
                faulthandler.cancel_dump_traceback_later()

    def look(self) -> None:
        """Have this process ended if it is at a batch for too long."""
        at, seconds = self.at, self.timeout_seconds
        if at and seconds is not None and time.monotonic() - at[0] > seconds and self.overdue:
            self.overdue(at[1])


class Watchdog:
    """A thread that serves the stations of one DataLoader until it is stopped.

    `pids` are those of the workers, which need not have come to their stations yet. `receive` is
    called with the outcomes that have arrived, in this thread. `desk` says what this process itself
    is at.
    """

    def __init__(
        self,
        stations: Sequence[WorkerChannel],
        pids: Sequence[int],
        limits: Limits,
        drain: DrainFlag,
        stop: Stop,
        receive: Callable[[Sequence[tuple[int, Outcome]]], None],
        desk: BatchMonitor,
    ) -> None:
        self._stations = stations
        self._pids = pids
        self._limits = limits
        self._drain = drain
        self._stop_request = stop
        self._receive = receive
        self._desk = desk
        self._ended = threading.Event()
        self._quiet_looks = 0
        self._seen: dict[int, Occupied] = {}
        self.verdicts: dict[int, KillReason] = {}
        self.error: BaseException | None = None
        # Who is given the outcomes finds the context of who asked for them, as Prefect's settings.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._serve,), name="watchdog", daemon=True
        )

    def start(self) -> None:
        """Begin to watch; after the workers were forked, so that none has half a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Take what has arrived, and end. Raises what `receive` has raised."""
        self._ended.set()
        self._thread.join()
        if self.error:
            raise self.error

    def _serve(self) -> None:
        try:
            next_look = 0.0
            pause = _GATHER_SECONDS
            while not self._ended.wait(pause):
                arrived = self._collect()
                self._quiet_looks = 0 if arrived else self._quiet_looks
                pause = _GATHER_SECONDS if arrived else min(2 * pause, _MAX_GATHER_SECONDS)
                if time.monotonic() >= next_look:
                    self._look()
                    next_look = time.monotonic() + _LOOK_SECONDS
            while self._collect():
                pass
        except BaseException as error:
            self.error = error
            # Nobody would take their outcomes, nor keep their deadlines.
            self._kill_all()

    def _collect(self) -> int:
        """Take what has arrived; return how many outcomes that were."""
        count = 0
        for pid, station in zip(self._pids, self._stations, strict=True):
            try:
                arrived = station.receive()
            except (EOFError, ValueError, TypeError):
                kill_tree(pid)  # A step has written to where its worker's outcomes are.
                continue
            count += len(arrived)
            if self.verdicts:  # What comes after the verdict comes too late.
                judged = {verdict.index for verdict in self.verdicts.values()}
                arrived = [pair for pair in arrived if pair[0] not in judged]
            for start in range(0, len(arrived), _GATHER_OUTCOMES):
                self._receive(arrived[start : start + _GATHER_OUTCOMES])
                time.sleep(0)
        return count

    def _look(self) -> None:
        if self._stop_request.requested:
            self._end_early()
        for number, station in enumerate(self._stations):
            station.bound_log()
            occupied = station.occupied
            # Seen twice the same: what is being written at this instant may be half of it old.
            if occupied and self._seen.get(number) == occupied and number not in self.verdicts:
                self._judge(number, station, occupied)
            if occupied:
                self._seen[number] = occupied
        self._desk.look()
        self._relieve_memory()
        self._end_silence()

    def _end_early(self) -> None:
        self._drain.set()
        if not self._stop_request.overdue:
            return
        for pid, station in zip(self._pids, self._stations, strict=True):
            if station.occupied:
                kill_tree(pid)

    def _end_silence(self) -> None:
        """Kill workers that wait for nothing; what they were to do falls to others."""
        at_work = bool(self._desk.at) or any(station.occupied for station in self._stations)
        self._quiet_looks = 0 if at_work else self._quiet_looks + 1
        if self._quiet_looks > _MAX_QUIET_LOOKS:
            self._kill_all()

    def _kill_all(self) -> None:
        for pid in self._pids:
            kill_tree(pid)

    def _judge(self, number: int, station: WorkerChannel, occupied: Occupied) -> None:
        timeout, memory = self._limits.timeout_seconds, self._limits.memory_bytes
        # Memory first: what swaps or fills it slowly is late because of it.
        if memory is not None:
            used = station.used_bytes(self._pids[number], memory)
            if used > memory:
                limit = f"{memory / 2**20:,.0f} MiB"
                message = f"it used {used / 2**20:,.0f} MiB of memory; --memory-limit is {limit}"
                self._kill(number, occupied, "oom", message)
                return
        if timeout is not None and time.monotonic() - occupied.started > timeout:
            self._kill(
                number, occupied, "timeout", f"still at work after {timeout:g} s (--timeout)"
            )

    def _relieve_memory(self) -> None:
        room = headroom()
        if room is None:
            return
        low = max(_LOW_MEMORY_BYTES, int(room.total * _LOW_MEMORY_SHARE))
        if room.available > low:
            return
        at_work = [
            (station.used_bytes(self._pids[number], _LOW_MEMORY_BYTES), number, occupied)
            for number, station in enumerate(self._stations)
            if (occupied := station.occupied) and number not in self.verdicts
        ]
        used, number, occupied = max(at_work, default=(0, 0, None))
        # Where others use it up, to kill a small one would not help.
        if occupied and used > _LOW_MEMORY_BYTES:
            message = (
                f"it used {used / 2**20:,.0f} MiB of memory, and the machine had "
                f"{room.available / 2**20:,.0f} MiB left"
            )
            self._kill(number, occupied, "oom", message)

    def _kill(
        self, number: int, occupied: Occupied, kind: Literal["timeout", "oom"], message: str
    ) -> None:
        station, pid = self._stations[number], self._pids[number]
        if not pause(pid):
            return  # It is dead already, of something else.
        if station.occupied != occupied:
            resume(pid)  # It has finished in the last moment.
            return
        self.verdicts[number] = KillReason(occupied.index, kind, message)
        if kind == "timeout":
            self._drain.set()  # While it writes its stack, it must not begin another input.
            self._dump_stack(pid, station.log)
        kill_tree(pid)

    def _dump_stack(self, pid: int, log: int) -> None:
        """Have a paused worker write its stack to its log, and give it a moment to do so."""
        before = os.fstat(log).st_size
        os.kill(pid, DUMP_SIGNAL)
        resume(pid)
        deadline = time.monotonic() + _DUMP_SECONDS
        while time.monotonic() < deadline and os.fstat(log).st_size == before:
            time.sleep(0.01)
        time.sleep(0.02)


def signal_name(number: int) -> str:
    """Return a signal's name, as SIGSEGV."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
