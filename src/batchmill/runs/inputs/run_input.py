"""Runs a step on one input. Each error that the step raises becomes the input's outcome."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from batchmill.core.outcome import Fault, Outcome, UnstoredOutcome
from batchmill.core.storage import remote
from batchmill.core.storage.fingerprints import Fingerprint
from batchmill.core.storage.local import remove_folder
from batchmill.core.storage.store import in_threads
from batchmill.core.user_step.load import Step
from batchmill.runs.inputs.call_step import (
    ABSENT,
    await_step,
    call_step,
    end_if_forked,
    read_answer,
)
from batchmill.runs.inputs.failed_outcomes import ReportedError, failure_of, outcome_of
from batchmill.runs.inputs.outputs import place_outputs
from batchmill.runs.inputs.read_input import fetch_and_read
from batchmill.runs.inputs.result_rows import Row, encode_rows, rows_of
from batchmill.runs.inputs.shared_step import opened_step
from batchmill.runs.inputs.staging import Input, StagingArea, discard, remove_flat, stage


class Loaded(NamedTuple):
    """The fingerprint of an input when it was read, and how long loading took in seconds."""

    seen: Fingerprint
    seconds: float


class StepHooks(NamedTuple):
    """Functions that a worker calls around a step.

    Attributes:
        before: Called before the step.
        after: Called when the step has returned or raised.
        fetched: Returns the result of `fetch_and_read` if it was called ahead for this input.
        confined: Calls `answer` in a confined process. None if the step is not confined.
        in_thread: Calls a function that reads files in a thread. None to call it in this thread.
        opened: Returns the async step to call. None to call the given one.
        limit: Awaits an async step, and raises OverdueError if it takes too long. None: no limit.
    """

    before: Callable[[], None] = lambda: None
    after: Callable[[], None] = lambda: None
    fetched: Callable[[], Fingerprint | None] = lambda: None
    confined: Callable[[], bytes] | None = None
    in_thread: Callable[[Callable[[], Fingerprint]], Awaitable[Fingerprint]] | None = None
    limit: Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]] | None = None
    opened: Callable[[], Awaitable[Step]] | None = None


_NO_HOOKS = StepHooks()
_Result = TypeVar("_Result")


def execute_input(
    step: Step, item: Input, staging: StagingArea, indexed: Callable[[], Any]
) -> Outcome:
    """Run `step` on one input, and move its files into the dataset. Never raises.

    The arguments are those of `run_step`.
    """
    if step.is_async:
        return store_all([_in_new_loop(_open_and_run(step, item, staging))])[0]
    return store_all([run_step(step, item, staging, indexed)])[0]


def _in_new_loop(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine in an event loop of its own, and wait for it."""
    running = None
    with suppress(RuntimeError):
        running = asyncio.get_running_loop()
    if not running:
        return asyncio.run(coroutine)
    # A notebook runs an event loop in this thread.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(copy_context().run, asyncio.run, coroutine).result()


async def _open_and_run(step: Step, item: Input, staging: StagingArea) -> Outcome | UnstoredOutcome:
    started = time.perf_counter()
    try:
        async with opened_step(step) as ready:
            return await run_async_step(ready, item, staging)
    except BaseException as error:  # The step's class raised it. It becomes the input's outcome.
        seconds = time.perf_counter() - started
        return failure_of(item, staging, error, seconds, ours=False)


def run_step(
    step: Step,
    item: Input,
    staging: StagingArea,
    indexed: Callable[[], Any],
    hooks: StepHooks = _NO_HOOKS,
) -> Outcome | UnstoredOutcome:
    """Run a step that is not async on one input. Never raises.

    Args:
        step: The step.
        item: The input.
        staging: The folders of this attempt.
        indexed: Returns the input's item of the step's torch Dataset. Not called if the step is a
            function.
        hooks: Called before and after the step, or instead of it.

    Returns:
        The input's outcome. An error that the step raised gives a `failed` outcome. If the dataset
        is remote, the output files are not uploaded yet.
    """

    def call(ready: Step, seen: Fingerprint) -> list[Row]:
        if hooks.confined:
            return rows_of(read_answer(hooks.confined()), staging.reserved)
        return call_step(ready, item, staging, indexed, seen)

    return _without_waiting(_run_and_place(step, item, staging, hooks, call))


async def run_async_step(
    step: Step, item: Input, staging: StagingArea, hooks: StepHooks = _NO_HOOKS
) -> Outcome | UnstoredOutcome:
    """Run an async step on one input. Never raises. See `run_step`."""

    def call(ready: Step, seen: Fingerprint) -> Awaitable[list[Row]]:
        calling = await_step(ready, item, staging, seen)
        return hooks.limit(calling) if hooks.limit else calling

    return await _run_and_place(step, item, staging, hooks, call)


def load(
    step: Step, item: Input, staging: StagingArea, indexed: Callable[[], Any], hooks: StepHooks
) -> tuple[Any, Loaded] | Outcome:
    """Load the sample of one input with `indexed`. Never raises.

    Returns:
        The sample, and its fingerprint and time; or the input's outcome if loading failed.
    """
    call, then = lambda *_: indexed(), lambda sample, loaded: (sample, loaded)
    return _without_waiting(_run(step, item, staging, hooks, call, then, None))


async def _run_and_place(
    step: Step,
    item: Input,
    staging: StagingArea,
    hooks: StepHooks,
    call: Callable[[Step, Fingerprint], Any],
) -> Outcome | UnstoredOutcome:
    """Run a step on one input with `call`, and move its files into the dataset."""
    writes = "out" in step.given or "outs" in step.given
    staged = staging.folder / item.input_id if writes else None
    place = partial(_place, item, staging, staged)
    return await _run(step, item, staging, hooks, call, place, staged)


async def _run(
    step: Step,
    item: Input,
    staging: StagingArea,
    hooks: StepHooks,
    call: Callable[[Step, Fingerprint], Any],
    then: Callable[[Any, Loaded], _Result],
    staged: Path | None,
) -> _Result | Outcome:
    """Run a step on one input with `call`. Never raises.

    If the step is not async, this coroutine never waits, so its caller needs no event loop.

    Args:
        step: The step.
        item: The input. Its files are fetched first.
        staging: The folders of this attempt.
        hooks: Called before and after the step.
        call: Returns the result of the opened step, to be awaited if the step is async.
        then: Called with the result. Its own result is returned.
        staged: The folder to create for the step's files; None if it writes no files.
    """
    started = time.perf_counter()
    pid = os.getpid()
    seen = ABSENT._replace(companions=item.planned_companions)
    ours = True  # The engine's code is running. False while the step's code is running.
    try:
        if hooks.in_thread:
            seen = await hooks.in_thread(partial(fetch_and_read, item))
        else:
            seen = hooks.fetched() or fetch_and_read(item)
        if staged:
            stage(staging, item)
        ours = False
        # The time to open the step is not that of an input.
        ready = await hooks.opened() if hooks.opened else step
        hooks.before()
        try:
            made = call(ready, seen)
            result = await made if step.is_async else made
        finally:
            end_if_forked(pid)
            hooks.after()
        ours = True
        return then(result, Loaded(seen, time.perf_counter() - started))
    except BaseException as error:  # The error becomes the input's outcome.
        loaded = Loaded(seen, time.perf_counter() - started)
        return fail(item, staging, loaded, error, ours=ours)
    finally:
        discard(item)


def _without_waiting(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """Return the result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: _Result = end.value
        return result
    raise AssertionError("only an async step is waited for")


def conclude(
    step: Step, item: Input, staging: StagingArea, loaded: Loaded, result: Any, seconds: float
) -> Outcome | UnstoredOutcome:
    """Return the outcome of a loaded input. The step returned `result` after `seconds`.

    If the dataset is remote, the output files are not uploaded yet.
    """
    staged = staging.folder / item.input_id if "outs" in step.given else None
    loaded = loaded._replace(seconds=loaded.seconds + seconds)
    ours = False
    try:
        rows = rows_of(result, staging.reserved)
        ours = True
        return _place(item, staging, staged, rows, loaded)
    except Exception as error:
        return fail(item, staging, loaded, error, ours=ours)


def fail(
    item: Input,
    staging: StagingArea,
    loaded: Loaded,
    error: BaseException | Fault,
    *,
    ours: bool = False,
) -> Outcome:
    """Return the outcome of an input that failed, and remove the files that its step wrote.

    Args:
        item: The input.
        staging: The folders of this attempt.
        loaded: Its fingerprint, and how long the attempt took.
        error: The exception, perhaps as text.
        ours: True if the engine's code raised it, False if the step did.
    """
    raised = ReportedError("failed", *error) if isinstance(error, Fault) else error
    failure = failure_of(item, staging, raised, loaded.seconds, ours=ours)
    remove_folder(staging.folder / item.input_id)
    return failure._replace(**loaded.seen._asdict())


def _place(
    item: Input, staging: StagingArea, staged: Path | None, rows: list[Row], loaded: Loaded
) -> Outcome | UnstoredOutcome:
    """Move an input's files into the dataset, and return the outcome `ok`.

    If the dataset is remote, the files are only named.
    """
    started = time.perf_counter()
    outputs, uploads = place_outputs(staged, rows, staging, item.input_id)
    encoded = encode_rows(rows)
    loaded = loaded._replace(seconds=loaded.seconds + time.perf_counter() - started)
    outcome = outcome_of(item, staging, "ok", "", "", loaded.seconds)
    outcome = outcome._replace(rows=encoded, outputs=outputs, **loaded.seen._asdict())
    if not uploads:
        return outcome

    def finish(error: Exception | None) -> Outcome:
        """Return the outcome after the uploads, of which one may have failed."""
        if error:
            return fail(item, staging, loaded, error, ours=True)
        if staged:
            names = [file.path.split("/", 2)[2] for file in outputs]
            remove_flat(str(staged), [f"{staged}/{name}" for name in names])
        return outcome

    return UnstoredOutcome(sum(file.size for file in outputs), uploads, finish)


def store_all(placed: Sequence[Outcome | UnstoredOutcome]) -> list[Outcome]:
    """Upload the files of several inputs, many at a time. Return the outcomes in their order."""
    uploads = [
        (number, upload)
        for number, outcome in enumerate(placed)
        if isinstance(outcome, UnstoredOutcome)
        for upload in outcome.uploads
    ]
    errors: dict[int, Exception] = {}

    def store(numbered: tuple[int, Callable[[], object]]) -> None:
        number, upload = numbered
        try:
            upload()
        except Exception as error:  # It becomes the outcome of its input only.
            errors[number] = error

    in_threads(store, uploads, remote.THREADS)
    return [
        outcome if isinstance(outcome, Outcome) else outcome.finish(errors.get(number))
        for number, outcome in enumerate(placed)
    ]
