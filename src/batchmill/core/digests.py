"""Short, tagged hashes: `digest("input", x)` never equals `digest("step", x)`."""

import hashlib
import re

_UNSAFE = re.compile(r"[^A-Za-z0-9]+")
_READABLE_CHARACTERS = 40


def digest(tag: str, *parts: str) -> str:
    """Return 16 hex digits (64 bits of BLAKE2b) of `tag` and `parts`.

    >>> digest("input", "a", "b") == digest("input", "ab")
    False
    """
    state = hashlib.blake2b(digest_size=8, person=tag.encode())
    for part in parts:
        data = part.encode("utf-8", "surrogateescape")
        state.update(len(data).to_bytes(8, "big"))
        state.update(data)
    return state.hexdigest()


def readable_id(tag: str, readable: str, name: str, digits: int = 16) -> str:
    """Return an id made of a readable text and the digest of a full name.

    The id is safe in every file system and URL, and is the same on every machine. Fewer `digits`
    are for ids that need not be unique.

    >>> readable_id("dataset", "clips (5 s)", "/data/clips (5 s)")
    'clips-5-s-820cee46addcad83'
    """
    text = _UNSAFE.sub("-", readable)[-_READABLE_CHARACTERS:].strip("-")
    end = digest(tag, name)[:digits]
    return f"{text}-{end}" if text else end


def input_id(name: str) -> str:
    """Return the id of an input, which names its folder.

    >>> input_id("speech/Grüße 1.wav")
    'speech-Gr-e-1-ae53ac10e51459de'
    """
    stem = name.rsplit(".", 1)[0] if "." in name.rsplit("/", 1)[-1] else name
    return readable_id("input", stem, name)
