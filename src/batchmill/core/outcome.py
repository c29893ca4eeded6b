"""The outcome of one input."""

from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple, get_args

Kind = Literal["ok", "failed", "timeout", "crashed", "oom", "missing", "cancelled"]
_LINE_CHARACTERS = 300

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
# The meanings for readers of a report. docs/reference/dataset.md describes the kinds.
_MEANINGS: Final = {
    "failed": "error in the step",
    "timeout": "took too long",
    "crashed": "its process died",
    "oom": "out of memory",
    "missing": "no such file",
}
# The kinds that the ledger records for inputs that are not ok.
FAILURE_KINDS: Final = tuple(kind for kind in KINDS if kind not in ("ok", "cancelled"))
# The longest pause of a RetryAfter, in seconds. With a longer one, the input is not retried.
LONGEST_RETRY_AFTER: Final = 3600.0
# Another attempt may succeed. After a timeout it would most likely time out again.
RETRIED_KINDS: Final = frozenset({"failed", "crashed", "oom"})


def described(kind: str) -> str:
    """Return a kind, and what it means if its name does not say so.

    >>> described("oom"), described("ok")
    ('oom: out of memory', 'ok')
    """
    meaning = _MEANINGS.get(kind)
    return f"{kind}: {meaning}" if meaning else kind


class WrittenFile(NamedTuple):
    """One output file.

    Attributes:
        path: Its path in the dataset.
        size: Its size in bytes.
        content: The hash of its content.
        pack: Its address in a pack. None if it is a file at `path`.
    """

    path: str
    size: int
    content: str
    pack: str | None = None


def text_of(error: BaseException) -> str:
    """Return the text of an exception. Its class may be the step's, and `__str__` may raise."""
    try:
        return str(error)
    except BaseException as fault:  # noqa: BLE001
        return f"(no error text: str() raised {type(fault).__name__})"


class Fault(NamedTuple):
    """An exception's type, text and traceback, as text: not every exception can be pickled."""

    error: str
    message: str
    traceback: str


class Outcome(NamedTuple):
    """The outcome of one input. It contains only plain values, so that it can always be pickled.

    The kind `cancelled` means that a store has failed, so the input is not the cause. Such an
    outcome is never recorded.

    Attributes:
        seconds: Wall time of the last attempt, without the uploads to a bucket.
        finished_at: In seconds since 1970.
        rows: JSON text of the metadata rows.
        error: Type of the exception.
        message: Text of the exception.
        size: With `mtime_ns`, `etag`, `ctime_ns`, `content` and `companions`: the fingerprint of
            the input when the step received it.
        retry_after: The shortest pause before the next attempt, in seconds.
        unclear: True if other inputs of its worker may be the cause. Then it runs again, alone.
        imported: The files of libraries that its worker has imported since the last outcome.
    """

    input: str
    input_id: str
    kind: Kind
    attempts: int
    seconds: float
    finished_at: float
    host: str
    rows: str = "[]"
    outputs: tuple[WrittenFile, ...] = ()
    error: str = ""
    message: str = ""
    traceback: str = ""
    log: str = ""
    size: int = -1
    mtime_ns: int = 0
    etag: str | None = None
    ctime_ns: int | None = None
    content: str = ""
    companions: str | None = None
    retry_after: float = 0.0
    unclear: bool = False
    imported: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """Why the input is not ok, in one line."""
        return one_line(self.error, self.message)


class UnstoredOutcome(NamedTuple):
    """An input whose step is done, and whose output files are not stored yet.

    Attributes:
        size: The size of the files in bytes.
        uploads: Each function stores one file. Any thread may call it.
        finish: Returns the outcome after all uploads, given the error of an upload or None.
    """

    size: int
    uploads: Sequence[Callable[[], object]]
    finish: Callable[[Exception | None], Outcome]


class OverdueError(Exception):
    """An async step was cancelled because it took too long. The cause has the step's stack.

    Attributes:
        unclear: True if other inputs of its worker may be the cause.
    """

    def __init__(self, seconds: float, *, unclear: bool) -> None:
        super().__init__(f"still running after {seconds:g} s (--timeout)")
        self.unclear = unclear


def one_line(error: str, message: str) -> str:
    r"""Join an error's type and the first line of its text. A very long line is cut.

    >>> one_line("ValueError", "bad header\nat byte 12")
    'ValueError: bad header'
    """
    first = start_of(visible(message.strip().partition("\n")[0]), _LINE_CHARACTERS)
    return f"{error}: {first}" if first else error


def start_of(text: str, characters: int) -> str:
    """Return the beginning of a text, with a mark if it is cut.

    >>> start_of("abcdef", 6), start_of("abcdef", 5)
    ('abcdef', 'abcde ...')
    """
    return text if len(text) <= characters else f"{text[:characters]} ..."


def visible(text: str) -> str:
    r"""Escape control characters, because a terminal would execute them.

    >>> visible("\x1b[31mred")
    '\\x1b[31mred'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in text)
