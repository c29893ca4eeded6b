"""The step of the tutorial: cut words into overlapping parts."""

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
    """Cut the word in a text file into parts. A shorter rest at the end is left out.

    Args:
        source: The text file.
        num_chars: The characters of a part.
        overlap: The characters that a part shares with the next.

    Yields:
        A row with `index` and `part` for each part.

    Raises:
        ValueError: `overlap` is not below `num_chars`.

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
