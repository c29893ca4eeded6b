"""The output of commands: plain text without markup, emoji or wrapping, or JSON."""

import json
import os
from typing import Any

from rich.console import Console

from batchmill.core.outcome import visible


class PlainConsole(Console):
    """A console that escapes control characters. File names and messages may contain them."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print texts with escaped control characters, and other objects as they are."""
        super().print(*map(_escaped, objects), **options)


def console(*, stderr: bool = False, quiet: bool = False) -> PlainConsole:
    """Return a console on stdout for results, or on stderr for messages.

    A `quiet` console prints nothing.
    """
    return PlainConsole(
        stderr=stderr, quiet=quiet, highlight=False, markup=False, emoji=False, soft_wrap=True
    )


def hide_prefect_log() -> None:
    """Keep Prefect's log off the terminal, unless the user's environment says otherwise.

    Its API gets the log in any case. Without this, a server that does not respond fills the screen:
    Prefect logs the whole content of each event that it cannot send.
    """
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_INTERNAL_LOGGING_LEVEL", "CRITICAL")
    os.environ.setdefault("DO_NOT_TRACK", "1")


def print_json(value: object) -> None:
    """Print a value on stdout as JSON, in one line, at once."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def _escaped(value: object) -> object:
    return "\n".join(map(visible, value.split("\n"))) if isinstance(value, str) else value
