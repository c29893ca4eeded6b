"""A step for texts: into chunks of characters, words or a tokenizer's tokens."""

import codecs
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from batchmill.step.import_reference import resolve_reference
from batchmill.steps.windows import windows

Unit = Literal["characters", "words", "tokens"]
Errors = Literal["strict", "replace", "ignore"]

_WORD = re.compile(r"\S+")
# What a tokenizer may leave out between two tokens: all but letters and digits.
_GAP = re.compile(r"[\W_]*")
_UTF_16 = {codecs.BOM_UTF16_LE: "little-endian", codecs.BOM_UTF16_BE: "big-endian"}
_NUL = {"replace": "\ufffd", "ignore": ""}
_SHOWN = 40
# More than the tokens of any one character.
_MOST_PENDING = 64


def _tokenizer(ref: str) -> Any:
    """Return the object that `ref` names. Raises StepError, or OptionError if it is not allowed."""
    found = resolve_reference(ref, "tokenizer")
    if not callable(found) and not _has_both(found):
        raise ValueError(
            f"{ref} is a {type(found).__name__}: expected a function text -> list of tokens, or an "
            "object with encode and decode"
        )
    return found


def _importable(ref: str | None) -> str | None:
    if ref is not None:
        _tokenizer(ref)
    return ref


def _has_both(value: object) -> bool:
    # Of a class they would lack their `self`.
    return not isinstance(value, type) and all(
        callable(getattr(value, name, None)) for name in ("encode", "decode")
    )


def chunk(
    source: Path,
    out: Path,
    *,
    size: Annotated[int, Field(ge=1)] = 1000,
    overlap: Annotated[int, Field(ge=0)] = 0,
    unit: Unit = "characters",
    tokenizer: Annotated[str | None, AfterValidator(_importable)] = None,
    errors: Errors = "strict",
) -> Iterator[dict[str, Any]]:
    """Cut one text into chunks of `size` characters, words or tokens, which share `overlap`.

    The chunks cover the text, and what is left at the end becomes a shorter one; an empty text, or
    one without a word or token, has none. White space belongs to the word or token before it.
    Nothing is changed: line ends stay as they are.

    `tokenizer` names a function text -> list of tokens, or an object whose `encode` gives a list of
    ids, and `decode` the text of such a list. The text is UTF-8; `errors` says what is done about
    bytes that are not, and about NUL. A byte order mark is no part of it.

    Yields for each chunk: `output`, `source` (the text's file name), `chunk` (its number from 0),
    `start` and `end` (in characters of the text), `characters`, and `tokens` (None without a
    tokenizer).

    Raises ValueError if the file is no such text, the tokenizer's tokens are not those of the text,
    or `overlap` is not below `size`.
    """
    if (unit == "tokens") != (tokenizer is not None):
        raise ValueError("unit=tokens and tokenizer=package.module:attribute belong together")
    text = _text_of(source, errors)
    bounds = _bounds(text, unit, tokenizer)
    for number, (first, last) in enumerate(windows(len(bounds) - 1, size, overlap)):
        start, end = bounds[first], bounds[last]
        name = f"{number:04d}.txt"
        (out / name).write_bytes(text[start:end].encode())
        yield {
            "output": name,
            "source": source.name,
            "chunk": number,
            "start": start,
            "end": end,
            "characters": end - start,
            "tokens": last - first if tokenizer else None,
        }


# What the tokenizer's module says is part of what this step is (see `batchmill.step.fingerprint`).
chunk.__dict__["references"] = ("tokenizer",)


def _text_of(source: Path, errors: Errors) -> str:
    data = source.read_bytes()
    order = _UTF_16.get(data[:2])
    if order and errors == "strict":
        raise ValueError(f"it is UTF-16 ({order}): convert it to UTF-8")
    text = data.decode("utf-8-sig", errors)
    if "\0" in text:
        if errors == "strict":
            raise ValueError(
                f"it has a NUL as character {text.index(chr(0))}: it is no text, or not UTF-8"
            )
        text = text.replace("\0", _NUL[errors])
    return text


def _bounds(text: str, unit: Unit, tokenizer: str | None) -> Sequence[int]:
    """Return where each character, word or token begins, and where the last one ends."""
    if unit == "characters":
        return range(len(text) + 1)
    if tokenizer is None:
        starts: Iterable[int] = (word.start() for word in _WORD.finditer(text))
    else:
        starts = _token_starts(text, _tokenizer(tokenizer))
    bounds = array("q", starts)  # A list of a large file's would take five times the memory.
    if not bounds:
        return [0]
    bounds[0] = 0
    bounds.append(len(text))
    return bounds


def _token_starts(text: str, tokenizer: Any) -> Iterator[int]:
    """Yield where each token begins: the characters of a chunk are the text's own.

    Where several tokens make up one character, it belongs to the first of them.
    """
    if _has_both(tokenizer):
        tokens, decode = tokenizer.encode(text), tokenizer.decode
        tokens = getattr(tokens, "ids", tokens)  # The library `tokenizers` wraps them up.
    else:
        tokens, decode = tokenizer(text), _joined
    position = 0
    before: list[Any] = []
    pending: list[Any] = []
    for token in tokens:
        pending.append(token)
        piece = decode(pending)
        begin = _find(text, piece, position)
        if begin < 0 and before:
            # The first token of a text may be decoded in another way: "##ing" for "ing".
            piece = decode([*before, *pending]).removeprefix(decode(before))
            begin = _find(text, piece, position)
        if begin >= 0:
            position = begin + len(piece)
            yield begin
            yield from [position] * (len(pending) - 1)
            before, pending = pending, []
        elif len(pending) > _MOST_PENDING or decode is _joined:
            break
    if pending and not decode(pending):
        yield from [position] * len(pending)
        pending = []
    if pending or not _GAP.fullmatch(text, position):
        given = f"gives {decode(pending[:1])!r}" if pending else "ends"
        raise ValueError(
            f"the tokenizer {given} where the text has {text[position : position + _SHOWN]!r} "
            f"(character {position}). Its tokens must be the pieces of the whole text in their "
            "order, without special ones; between them, it may leave out anything but letters "
            "and digits."
        )


def _joined(tokens: list[Any]) -> str:
    for token in tokens:
        if not isinstance(token, str):
            raise TypeError(
                f"the tokenizer gives a {type(token).__name__}: expected text. One that gives ids "
                "must be an object with encode and decode."
            )
    return "".join(tokens)


def _find(text: str, piece: str, position: int) -> int:
    """Return where a piece is, if nothing but a gap is before it; else -1.

    An empty one is nowhere: the bytes of a part of a character may be decoded to nothing.
    """
    if not piece:
        return -1
    if text.startswith(piece, position):
        return position
    gap = _GAP.match(text, position)
    return text.find(piece, position, gap.end() + len(piece)) if gap else -1
