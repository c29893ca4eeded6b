"""The consoles that commands print to: text as it is, without markup, smileys or wrapping."""

from rich.console import Console


def console(*, stderr: bool = False) -> Console:
    """Return a console on stdout, for what a command is asked for, or on stderr, for the rest."""
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)
