"""The tutorial's step: cut words into overlapping parts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field


def split(
    source: Path,
    *,
    num_chars: Annotated[int, Field(ge=1)] = 2,
    overlap: Annotated[int, Field(ge=0)] = 1,
) -> Iterator[dict[str, Any]]:
    """Yield the parts of the word in a text file: a row of `index` and `part` each.

    Each part has `num_chars` characters and shares `overlap` of them with the next; what is left
    at the end and shorter is not a part. Raises ValueError if `overlap` is not below `num_chars`.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     word = Path(folder, "word.txt")
    ...     _ = word.write_text("simple")
    ...     [row["part"] for row in split(word, num_chars=3, overlap=2)]
    ['sim', 'imp', 'mpl', 'ple']
    """
    if overlap >= num_chars:
        raise ValueError(f"overlap ({overlap}) must be below num_chars ({num_chars})")
    word = source.read_text(encoding="utf-8").strip()
    for index, start in enumerate(range(0, len(word) - num_chars + 1, num_chars - overlap)):
        yield {"index": index, "part": word[start : start + num_chars]}
