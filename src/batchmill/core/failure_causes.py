"""The cause of a failure: what the failures of inputs with the same fault have in common."""

import re
from dataclasses import dataclass, field
from functools import lru_cache

from batchmill.core.outcome import one_line

_TEXT_CHARACTERS = 20_000
# These parts of a message differ between inputs with the same fault: quoted names, paths, addresses
# and numbers.
_VARYING = re.compile(
    # A path begins where a word begins. Otherwise the time for a long word would be quadratic.
    r"""(?<!\w)'[^']*'(?!\w) | "[^"]*" | `[^`]*`
    | (?<![^\s'"(),:;`])[^\s'"(),:;]*[/\\](?:[^\s'"(),;]*[^\s'"(),:;])?
    | \b0x[0-9a-fA-F]+\b | \b(?=[a-f]*\d)[0-9a-f]{8,}\b | [-+]?\d[\d.,_]*(?:e[-+]?\d+)?""",
    re.VERBOSE,
)
_LIBRARY = re.compile(r"site-packages|dist-packages|/lib\d*/python3|^<frozen")


def normalised(text: str) -> str:
    """Replace what differs between inputs: quoted names, paths, addresses and numbers.

    >>> normalised("bad header at byte 12 of '/data/a.wav'"), normalised("can't read x/y: -1.5e3")
    ('bad header at byte * of *', "can't read *: *")
    """
    return _VARYING.sub("*", text[:_TEXT_CHARACTERS])


@lru_cache(1000)
def is_library(path: str) -> bool:
    """Return whether a Python file belongs to a library, and not to the user's own modules."""
    return bool(_LIBRARY.search(path))


@dataclass
class SameCause:
    """Compares the first outcomes of a run: have they all failed with one cause?

    Attributes:
        limit: The number of inputs that must have failed. 0: any other outcome has been seen.
        count: The number of inputs that have failed.
        hosts: The machines on which they failed.
        reason: The error of the first input.
    """

    limit: int
    count: int = 0
    hosts: set[str] = field(default_factory=set)
    reason: str = ""
    _cause: tuple[str, str, str] | None = None

    def add(self, kind: str, error: str, message: str, host: str) -> None:
        """Add the outcome of an input. One without a file says nothing about the step."""
        if not self.limit or kind == "missing":
            return
        cause = (kind, error, normalised(message.partition("\n")[0]))
        self._cause = self._cause or cause
        if kind == "ok" or cause != self._cause:
            self.limit = 0
            return
        self.reason = self.reason or f"{kind}: {one_line(error, message)}"
        self.count += 1
        self.hosts.add(host)

    @property
    def is_reached(self) -> bool:
        """True if enough inputs have failed, and none with another outcome."""
        return 0 < self.limit <= self.count

    @property
    def advice(self) -> str:
        """Why the run is stopped, and what to do."""
        return (
            f"The run was stopped, because its first {self.count:,} inputs all failed with one "
            f"cause: {self.reason.removesuffix('.')}. Fix it, and enter the same command again. To "
            "execute all inputs in any case, add --stop-after-same 0."
        )
