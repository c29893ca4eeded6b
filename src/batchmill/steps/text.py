"""Cut texts into chunks of characters, words or a tokenizer's tokens."""

import codecs
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from batchmill.core.user_step.import_reference import resolve_reference
from batchmill.steps.windows import windows

Unit = Literal["characters", "words", "tokens"]
Errors = Literal["strict", "replace", "ignore"]

_WORD = re.compile(r"\S+")
# Text that a tokenizer may leave out between two tokens: anything but letters and digits.
_GAP = re.compile(r"[\W_]*")
_UTF_16 = {codecs.BOM_UTF16_LE: "little-endian", codecs.BOM_UTF16_BE: "big-endian"}
_NUL = {"replace": "\ufffd", "ignore": ""}
_SHOWN = 40
# More tokens than any single character has.
_MOST_PENDING = 64


def _tokenizer(ref: str) -> Any:
    """Import a tokenizer. Raises StepError, or OptionError if it may not be run here."""
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
    # The methods of a class would lack their `self`.
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
    """Cut one text into chunks that cover it. The last chunk may be shorter.

    White space belongs to the word or token before it. The text is not changed, so line ends are
    kept. A byte order mark is removed. A text without a word or token has no chunks.

    Args:
        source: The text, as UTF-8.
        out: The folder for the chunks.
        size: The units of a chunk.
        overlap: The units that a chunk shares with the next.
        unit: The unit of `size` and `overlap`.
        tokenizer: package.module:attribute of a function that splits a text into tokens, or of an
            object whose `encode` returns a list of ids and whose `decode` returns their text.
        errors: How to handle bytes that are not UTF-8, and NUL: reject the file, replace them, or
            ignore them.

    Yields:
        A row per chunk: `output`, `source` (the text's file name), `chunk` (its number from 0),
        `start` and `end` (in characters of the text), `characters`, and `tokens` (None without a
        tokenizer).

    Raises:
        ValueError: The file is not such a text, the tokens do not match the text, or `overlap` is
            not below `size`.
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


# The source of the tokenizer's module is part of the step's identity
# (batchmill.core.user_step.fingerprint).
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
                f"it has a NUL as character {text.index(chr(0))}: it is not text, or not UTF-8"
            )
        text = text.replace("\0", _NUL[errors])
    return text


def _bounds(text: str, unit: Unit, tokenizer: str | None) -> Sequence[int]:
    """Return the start of each character, word or token, and the end of the last one."""
    if unit == "characters":
        return range(len(text) + 1)
    if tokenizer is None:
        starts: Iterable[int] = (word.start() for word in _WORD.finditer(text))
    else:
        starts = _token_starts(text, _tokenizer(tokenizer))
    bounds = array("q", starts)  # A list would take five times the memory.
    if not bounds:
        return [0]
    bounds[0] = 0
    bounds.append(len(text))
    return bounds


def _token_starts(text: str, tokenizer: Any) -> Iterator[int]:
    """Yield the start of each token in the text.

    If several tokens make up one character, the character belongs to the first of them.
    """
    if _has_both(tokenizer):
        tokens, decode = tokenizer.encode(text), tokenizer.decode
        tokens = getattr(tokens, "ids", tokens)  # The library `tokenizers` returns an object.
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
            # A token may be decoded differently at the start of a text: "##ing" for "ing".
            piece = decode([*before, *pending]).removeprefix(decode(before))
            begin = _find(text, piece, position)
        if begin < 0 and decode is not _joined:
            # Other bytes of a U+FFFD in the text, whose first byte was already decoded to it.
            piece = piece.lstrip("\ufffd")
            begin = _find(text, piece, position)
        if begin >= 0:
            position = begin + len(piece)
            yield begin
            yield from [position] * (len(pending) - 1)
            before, pending = pending, []
        elif len(pending) > _MOST_PENDING or decode is _joined:
            break
    if pending and not decode(pending).strip("\ufffd"):
        yield from [position] * len(pending)
        pending = []
    if pending or not _GAP.fullmatch(text, position):
        given = f"returned {decode(pending[:1])!r}" if pending else "ended"
        raise ValueError(
            f"the tokenizer {given} where the text has {text[position : position + _SHOWN]!r} "
            f"(character {position}). Its tokens must be the pieces of the whole text in order, "
            "without special tokens. Between them, it may leave out anything but letters and "
            "digits."
        )


def _joined(tokens: list[Any]) -> str:
    for token in tokens:
        if not isinstance(token, str):
            raise TypeError(
                f"the tokenizer returned a {type(token).__name__}: expected text. A tokenizer that "
                "returns ids must be an object with encode and decode."
            )
    return "".join(tokens)


def _find(text: str, piece: str, position: int) -> int:
    """Return the start of a piece if only a gap precedes it, else -1.

    An empty piece is not found: a part of a character's bytes may be decoded to nothing.
    """
    if not piece:
        return -1
    if text.startswith(piece, position):
        return position
    gap = _GAP.match(text, position)
    return text.find(piece, position, gap.end() + len(piece)) if gap else -1
