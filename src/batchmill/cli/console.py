"""Consoles for the output of commands: plain text, without markup, emoji or wrapping."""

from rich.console import Console


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Return a console on stdout for results, or on stderr for messages.

    A `quiet` console prints nothing.
    """
    return Console(
        stderr=stderr, quiet=quiet, highlight=False, markup=False, emoji=False, soft_wrap=True
    )
