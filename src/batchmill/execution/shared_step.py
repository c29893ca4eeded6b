"""Open an async step, once for each worker: create its class, and enter it."""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from contextvars import copy_context
from dataclasses import replace

from batchmill.step.load import Step

logger = logging.getLogger(__name__)


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


class SharedStep:
    """The step that all inputs of a worker share.

    It is opened for the first input. If that raises an error, the error is the outcome of all
    inputs that wait for it, and the next attempt at one opens it again.

    Args:
        step: The step, which is not opened yet.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._closing = asyncio.Event()
        # The text that a step prints while it is opened belongs to the worker, not to an input.
        self._context = copy_context()
        self._ready: asyncio.Future[Step] | None = None
        self._owner: asyncio.Task[None] | None = None

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
        try:
            async with opened_step(self._step) as step:
                ready.set_result(step)
                await self._closing.wait()
        except BaseException as error:
            if ready.done():
                logger.warning("The step raised an error when it was left.", exc_info=True)
            else:
                self._ready = None
                ready.set_exception(error)
