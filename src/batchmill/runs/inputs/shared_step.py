"""Open an async step, once for each worker: create its class, and enter it."""

import asyncio
import inspect
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace

from batchmill.core.user_step.load import Step


@asynccontextmanager
async def opened_step(step: Step) -> AsyncIterator[Step]:
    """Yield the step that a worker calls. A class is created, and both are entered if possible.

    Raises any error of the user's class.
    """
    target, params = step.target, step.params
    if inspect.isclass(target):
        target, params = target(**params), {}
    has_enter = hasattr(type(target), "__aenter__")
    async with target if has_enter else nullcontext(target) as entered:
        # Usually, this is the object itself.
        yield replace(step, target=entered if callable(entered) else target, params=params)


@dataclass
class SharedStep:
    """The step that all inputs of a worker share.

    It is opened for the first input. If that raises an error, the error is the outcome of all
    inputs that wait for it, and the next attempt at one opens it again.

    Attributes:
        step: The step, which is not opened yet.
        setting_up: The context in which the step is opened and closed.
        warn: Called with a warning if the step raises an error when it is closed.
    """

    step: Step
    setting_up: Callable[[], AbstractContextManager[None]]
    warn: Callable[[str], None]
    _closing: asyncio.Event = field(default_factory=asyncio.Event)
    # The text that a step prints while it is opened belongs to the worker, not to an input.
    _context: Context = field(default_factory=copy_context)
    _ready: asyncio.Future[Step] | None = None
    _owner: asyncio.Task[None] | None = None

    async def get(self) -> Step:
        """Return the opened step. Raises any error of the user's class."""
        if self._ready is None:
            self._ready = asyncio.get_running_loop().create_future()
            # Some clients must be entered and left in the same task.
            self._owner = asyncio.create_task(self._own(self._ready), context=self._context)
        return await asyncio.shield(self._ready)

    async def close(self) -> None:
        """Leave the step."""
        self._closing.set()
        if self._owner:
            await self._owner

    async def _own(self, ready: asyncio.Future[Step]) -> None:
        opening = opened_step(self.step)
        try:
            with self.setting_up():
                step = await opening.__aenter__()
        except BaseException as error:  # noqa: BLE001  # The user's class raised it.
            self._ready = None
            ready.set_exception(error)
            return
        ready.set_result(step)
        await self._closing.wait()
        try:
            with self.setting_up():
                await opening.__aexit__(None, None, None)
        except BaseException as error:  # noqa: BLE001  # The user's class raised it.
            where = "".join(traceback.format_exception(error))
            self.warn(f"step {self.step.ref}: leaving it raised an error.\n{where}")
