"""Keep the log of a run out of what a user sees. Prefect's API gets the log in any case."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from prefect.context import FlowRunContext
from prefect.logging.handlers import PrefectConsoleHandler


@contextmanager
def log_level(*, verbose: bool) -> Iterator[None]:
    """Hide Prefect's own log during the block, or also show batchmill's details if `verbose`.

    The log of a run in a user's own flow stays visible, because the user chose Prefect.
    """
    own = logging.getLogger("batchmill")
    before = own.level
    if verbose:
        own.setLevel(logging.DEBUG)
    hidden = [] if verbose or FlowRunContext.get() else [(one, one.level) for one in _consoles()]
    for console, level in hidden:
        console.addFilter(_is_not_of_prefect)
        # On the command line, the level is CRITICAL. A warning of batchmill is for the user.
        console.setLevel(min(level, logging.WARNING))
    try:
        yield
    finally:
        own.setLevel(before)
        for console, level in hidden:
            console.removeFilter(_is_not_of_prefect)
            console.setLevel(level)


def _consoles() -> list[logging.Handler]:
    """Return the handlers that print to the screen. Prefect attaches them to the root logger."""
    return [
        handler
        for handler in logging.getLogger().handlers
        if isinstance(handler, PrefectConsoleHandler)
    ]


def _is_not_of_prefect(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] != "prefect"
