"""The torch Dataset that executes the inputs of an async step: many at a time, in one event loop.

A worker begins the inputs whose turn has come, and sends the outcome of each attempt. It decides
nothing else: the table of the shard's process says whether and when an input runs again.
"""

import asyncio
import logging
import os
import sys
import time
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TextIO, cast

from torch.utils.data import IterableDataset

from batchmill.core.outcome import Outcome, OverdueError
from batchmill.runs.workers.input_feed import SharedTurns
from batchmill.runs.workers.loaded_batches import Batch
from batchmill.runs.workers.process_state import BrokenWorkerError
from batchmill.runs.workers.processes import has_children, kill_descendants
from batchmill.runs.workers.stop_flags import SharedFlag
from batchmill.runs.workers.worker import this_worker
from batchmill.runs.workers.worker_channel import LOG_TAIL_BYTES

# How often a worker looks for a turn, and records that its event loop is not blocked.
_POLL_SECONDS, _BEAT_SECONDS = 0.01, 0.05
# If the event loop was blocked for this share of the time limit, the input may not be at fault.
_BLOCKED_SHARE = 0.05
# A step may leave as many files open for each input that it executes at a time.
_OPEN_FILES = 32
# Awaits the step within the time limit of an input.
Limit = Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]
# Runs one attempt at an input: its index, the number of its slot in the channel, and its limit.
RunAttempt = Callable[[int, int, Limit], Awaitable[Outcome]]


@dataclass(frozen=True, kw_only=True)
class Concurrency:
    """How a worker runs the inputs of an async step.

    Attributes:
        inputs: The number of inputs at a time.
        open: Opens the step in a worker, and returns the function that runs an attempt.
        pace_seconds: The shortest time between the begin of two attempts. 0: no limit.
        keeps_logs: True to keep the printed text of inputs that are ok, too.
    """

    inputs: int
    open: Callable[[], AbstractAsyncContextManager[RunAttempt]]
    pace_seconds: float = 0.0
    keeps_logs: bool = False


@dataclass(kw_only=True, eq=False)
class ConcurrentInputs(IterableDataset[Batch]):
    """An iterable torch Dataset without items, which executes all inputs that the worker takes."""

    concurrency: Concurrency
    timeout_seconds: float | None
    slots: int
    drain: SharedFlag
    turns: SharedTurns
    # The seconds for which the event loop was blocked, and when it last ran.
    _blocked: float = 0.0
    _last_beat: float = 0.0
    # True when this worker must be replaced.
    _is_worn: bool = False
    _running: int = 0

    def __iter__(self) -> Iterator[Batch]:
        """Execute all inputs that this worker takes."""
        try:
            if not self.drain.is_set():
                # `asyncio.run` would wait at its end for threads of the step that hang.
                asyncio.new_event_loop().run_until_complete(self._run())
        except BaseException:  # noqa: BLE001
            this_worker.end()
        if self._is_worn:
            this_worker.end()
        return iter(())

    async def _run(self) -> None:
        self._streams = _capture_streams()
        this_worker.after_dump(_name_blocker)
        self.threads = _StepThreads(self.slots)
        asyncio.get_running_loop().set_default_executor(self.threads)
        self._last_beat = time.monotonic()
        beating = asyncio.create_task(self._beat())
        self._free: asyncio.LifoQueue[int] = asyncio.LifoQueue()
        for slot in range(self.slots):
            self._free.put_nowait(slot)
        async with self.concurrency.open() as run, asyncio.TaskGroup() as group:
            while True:
                slot = await self._free.get()
                turn = await self._next_turn()
                if turn is None:
                    break
                group.create_task(self._execute(*turn, slot, run))
        beating.cancel()

    async def _beat(self) -> None:
        """Record again and again that the event loop is not blocked."""
        while True:
            this_worker.channel.beat()
            self._blocked, self._last_beat = self.blocked_seconds(), time.monotonic()
            await asyncio.sleep(_BEAT_SECONDS)

    def blocked_seconds(self) -> float:
        """Return for how long the event loop was blocked so far, without short delays."""
        late = time.monotonic() - self._last_beat - 2 * _BEAT_SECONDS
        return self._blocked + max(0.0, late)

    async def _next_turn(self) -> tuple[int, float] | None:
        """Wait for a turn. Return None if this worker must begin no further input."""
        while not (self.drain.is_set() or self._is_worn):
            turns = self.turns.take()
            if turns:
                return turns[0]
            await asyncio.sleep(_POLL_SECONDS)
        return None

    async def _execute(self, index: int, at: float, slot: int, run: RunAttempt) -> None:
        """Execute an input once, and send its outcome."""
        channel = this_worker.channel
        try:
            pause = at - time.monotonic()
            if pause > 0:
                await asyncio.sleep(pause)
            channel.show(index, slot)
            # The process of the shard sets the flag, and reads the slots afterwards.
            if self.drain.is_set():
                channel.leave(slot)
                return
            self._running += 1
            attempt = _Attempt(self, slot)
            _current.set(attempt)
            outcome = await run(index, slot, attempt.limit)
            if outcome.kind != "ok" or self.concurrency.keeps_logs:
                outcome = outcome._replace(log=attempt.log_text())
            channel.finish(index, outcome, slot)
            self._running -= 1
            self._restore()
        except BaseException:  # noqa: BLE001
            this_worker.end()
        finally:
            self._free.put_nowait(slot)

    def _restore(self) -> None:
        """Restore what a step may have changed. The other inputs in progress still run."""
        sys.stdout, sys.stderr = self._streams
        try:
            this_worker.restore_settings(open_files=_OPEN_FILES * self.slots)
        except BrokenWorkerError:
            self._is_worn = True
        if self.threads.hanging >= self.slots:
            self._is_worn = True
        if not self._running and has_children():
            kill_descendants(this_worker.own_children)


class _Attempt:
    """One attempt at an input: the text that it prints, its calls in threads, and its time."""

    def __init__(self, worker: ConcurrentInputs, slot: int) -> None:
        self.slot = slot
        self.calls: list[Future[Any]] = []
        self._worker = worker
        self._log = ""

    def add_text(self, text: str) -> None:
        """Add printed text. Only its end is kept."""
        self._log = (self._log + text)[-LOG_TAIL_BYTES:]

    def log_text(self) -> str:
        """Return the end of the printed text."""
        return self._log.encode("utf-8", "replace")[-LOG_TAIL_BYTES:].decode("utf-8", "replace")

    async def limit(self, step: Coroutine[Any, Any, Any]) -> Any:
        """Await the step, in a task of its own that it may cancel. Raises its errors.

        Raises OverdueError after the time limit. Any later result or error of the step is ignored.
        """
        seconds = self._worker.timeout_seconds
        blocked = self._worker.blocked_seconds()
        task = asyncio.create_task(_settle(step))
        await asyncio.wait({task}, timeout=seconds)
        is_overdue, unclear = not task.done(), False
        if is_overdue and seconds is not None:
            blocked = self._worker.blocked_seconds() - blocked
            has_waited = any(not (call.running() or call.done()) for call in self.calls)
            unclear = self._worker.slots > 1 and (has_waited or blocked > _BLOCKED_SHARE * seconds)
            task.cancel()
            await asyncio.wait({task})  # The watchdog limits this time.
        self._worker.threads.leave(self.calls)
        result, error = (None, CancelledError()) if task.cancelled() else task.result()
        if is_overdue:
            raise OverdueError(seconds or 0.0, unclear=unclear) from error
        if error is not None:
            raise error
        return result


async def _settle(step: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    """Return the result of a step, or its error. Some errors would end the event loop."""
    try:
        return await step, None
    except BaseException as error:  # noqa: BLE001  # It becomes the outcome.
        return None, error


_current: ContextVar[_Attempt | None] = ContextVar("batchmill_attempt", default=None)


def _name_blocker(*_: object) -> None:
    """Record the input whose code runs now. This is a handler of a signal."""
    attempt = _current.get()
    if attempt:
        this_worker.channel.name_blocker(attempt.slot)


class _StepThreads(ThreadPoolExecutor):
    """The threads of `asyncio.to_thread`: as many as inputs, and as many that may hang."""

    def __init__(self, slots: int) -> None:
        super().__init__(2 * max(slots, os.cpu_count() or 1), "step")
        self._left: list[Future[Any]] = []

    def submit(self, call: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """Call a function in a thread, for the current input."""
        future = super().submit(call, *args, **named)
        attempt = _current.get()
        if attempt:
            attempt.calls = [call for call in attempt.calls if not call.done()] + [future]
        return future

    def leave(self, calls: Iterable[Future[Any]]) -> None:
        """Record the calls of an attempt that has ended."""
        self._left += [call for call in calls if call.running()]

    @property
    def hanging(self) -> int:
        """The number of threads whose attempt has ended."""
        self._left = [call for call in self._left if call.running()]
        return len(self._left)


class _InputStream:
    """A standard stream whose text belongs to the input that writes it.

    Threads of a step that were not started with its context write to the worker's log.
    """

    def __init__(self, other: TextIO) -> None:
        self._other = other

    def __getattr__(self, name: str) -> Any:
        return getattr(self._other, name)

    def write(self, text: str) -> int:
        attempt = _current.get()
        if attempt is None:
            return self._other.write(text)
        attempt.add_text(text)
        return len(text)

    def writelines(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.write(text)

    def close(self) -> None:
        """Do nothing: other inputs use the stream, too."""


def _capture_streams() -> tuple[TextIO, TextIO]:
    """Let the text of each input belong to it. Return the new standard output and error."""
    streams = cast("TextIO", _InputStream(sys.stdout)), cast("TextIO", _InputStream(sys.stderr))
    sys.stdout, sys.stderr = streams
    for handler in logging.root.handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stderr)
    return streams
