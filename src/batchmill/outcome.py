"""What became of one input."""

from typing import Final, Literal, NamedTuple, get_args

Kind = Literal["ok", "failed", "timeout", "crashed", "oom", "missing", "cancelled"]
_LINE_CHARACTERS = 300

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


class WrittenFile(NamedTuple):
    """One output file: its path relative to the dataset, its size in bytes, its content's hash."""

    path: str
    size: int
    content: str


class Fault(NamedTuple):
    """An exception's type, text and traceback, as text: not every exception can be pickled."""

    error: str
    message: str
    traceback: str


class Outcome(NamedTuple):
    """What became of one input. Holds only plain values, so that it can always be pickled.

    `rows` is the JSON text of the metadata rows; `error` is the exception's type, `message` its
    text; `seconds` is the wall time of the last attempt, `finished_at` seconds since 1970. `size`,
    `mtime_ns`, `etag` and `content` are the input's fingerprint when the step was given it.

    An outcome that is `cancelled` says that a store has failed, for which no input is to blame; it
    is never recorded.
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
    content: str = ""

    @property
    def reason(self) -> str:
        """Why it is not ok, in one line."""
        return one_line(self.error, self.message)


def one_line(error: str, message: str) -> str:
    r"""Join an error's type and the first line of its text, cut where it is very long.

    >>> one_line("ValueError", "bad header\nat byte 12")
    'ValueError: bad header'
    """
    first = visible(message.strip().partition("\n")[0])
    if len(first) > _LINE_CHARACTERS:
        first = f"{first[:_LINE_CHARACTERS]} ..."
    return f"{error}: {first}" if first else error


def visible(text: str) -> str:
    r"""Write control characters as what they are: a terminal would obey them.

    >>> visible("\x1b[31mred")
    '\\x1b[31mred'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in text)
