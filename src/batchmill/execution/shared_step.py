"""Open an async step, once for each worker: create its class, and enter it."""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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
    if not hasattr(type(target), "__aenter__"):
        yield replace(step, target=target, params=params)
        return
    async with target as entered:
        # Usually, this is the object itself.
        target = entered if callable(entered) else target
        yield replace(step, target=target, params=params)


class SharedStep:
    """The step that all inputs of a worker share.

    It is opened for the first input. If that raises an error, the error is the outcome of all
    inputs that wait for it, and the next attempt at one opens it again.

    Args:
        step: The step, which is not opened yet.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._wanted, self._closing = asyncio.Event(), asyncio.Event()
        self._ready = asyncio.get_running_loop().create_future()
        # Some clients must be entered and left in the same task.
        self._owner = asyncio.create_task(self._own())

    async def get(self) -> Step:
        """Return the opened step. Raises any error of the user's class."""
        self._wanted.set()
        step: Step = await asyncio.shield(self._ready)
        return step

    async def close(self) -> None:
        """Leave the step."""
        self._closing.set()
        self._wanted.set()
        await self._owner

    async def _own(self) -> None:
        while not self._closing.is_set():
            await self._wanted.wait()
            self._wanted.clear()
            await self._open()

    async def _open(self) -> None:
        if self._closing.is_set():
            return
        ready = self._ready
        try:
            async with opened_step(self._step) as step:
                ready.set_result(step)
                await self._closing.wait()
        except BaseException as error:
            if ready.done():
                logger.warning("The step raised an error when it was left.", exc_info=True)
                return
            self._ready = asyncio.get_running_loop().create_future()
            ready.set_exception(error)
