"""The consoles that commands print to: text as it is, without markup, smileys or wrapping."""

from rich.console import Console


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Return a console on stdout, for results, or on stderr, for messages; `quiet` prints none."""
    return Console(
        stderr=stderr, quiet=quiet, highlight=False, markup=False, emoji=False, soft_wrap=True
    )
