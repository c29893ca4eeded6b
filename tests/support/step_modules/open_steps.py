"""Steps that take an open file, and a few bytes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any


def header(source: BinaryIO):
    """Return the name of the file, and its first and last bytes."""
    first = source.read(4)
    size = source.seek(0, 2)
    source.seek(-4, 2)
    return {"name": source.name, "first": first.hex(), "last": source.read().hex(), "size": size}


def first_word(source: BinaryIO, *, of: Any = None):
    """Return the first bytes. The annotation of `of` cannot be read when the step runs."""
    return {"first": source.read(4).hex()}


def hides_errors(source: BinaryIO):
    """Return whether the last bytes could be read."""
    try:
        source.seek(-4, 2)
        return {"read": len(source.read(4))}
    except Exception:  # noqa: BLE001  # As a careless library does.
        return {"read": -1}


def rows_later(source: BinaryIO):
    """Read the file while the rows are yielded."""
    for _ in range(3):
        yield {"first": source.read(1).hex()}


def with_mask(source: BinaryIO, mask: Path, out: Path, row: dict):
    """Read the file, and a further file by its path."""
    (out / "a.txt").write_bytes(source.read(4) + mask.read_bytes())
    return {"output": "a.txt", "label": row["label"]}


class Counter:
    """An object that is called, whose parameter is an open file."""

    def __call__(self, source: BinaryIO):
        return {"bytes": len(source.read())}


counter = Counter()
