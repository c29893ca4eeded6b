"""Keep the log of a run out of what a user sees. Prefect's API gets the log in any case."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from prefect.context import FlowRunContext
from prefect.logging.handlers import PrefectConsoleHandler


@contextmanager
def log_level(*, verbose: bool) -> Iterator[None]:
    """Hide Prefect's own log during the block, or also show batchmill's details if `verbose`.

    The log of a run in a user's own flow stays visible, because the user chose Prefect.
    """
    own = logging.getLogger("batchmill")
    with ExitStack() as hidden:
        if verbose:
            hidden.callback(own.setLevel, own.level)
            own.setLevel(logging.DEBUG)
        elif FlowRunContext.get() is None:
            for console in _consoles():
                hidden.enter_context(_quiet(console))
        yield


@contextmanager
def _quiet(console: logging.Handler) -> Iterator[None]:
    """Hide Prefect's log during the block, and show batchmill's warnings.

    On the command line, the level is CRITICAL. A warning of batchmill is for the user.
    """
    level = console.level

    def is_shown(record: logging.LogRecord) -> bool:
        name = record.name.partition(".")[0]
        return name == "batchmill" or (name != "prefect" and record.levelno >= level)

    console.addFilter(is_shown)
    console.setLevel(min(level, logging.WARNING))
    try:
        yield
    finally:
        console.removeFilter(is_shown)
        console.setLevel(level)


def _consoles() -> list[logging.Handler]:
    """Return the handlers that print to the screen. Prefect attaches them to the root logger."""
    return [
        handler
        for handler in logging.getLogger().handlers
        if isinstance(handler, PrefectConsoleHandler)
    ]
