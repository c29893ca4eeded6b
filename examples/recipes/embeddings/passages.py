"""Embed the paragraphs of texts: a row with a vector for each paragraph."""

import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypedDict

import numpy as np
import numpy.typing as npt


class Passage(TypedDict):
    """One row of the table."""

    paragraph: int
    text: str
    key: int
    vector: npt.NDArray[np.float32]


@cache
def model():
    """Load the model, once in each worker process."""
    import wordllama  # It configures logging when it is imported.

    # The package contains the model. Without the folder, it downloads a part of it again.
    folder = Path(wordllama.__file__).parent
    return wordllama.WordLlama.load(cache_dir=folder, disable_download=True)


def encode(texts: list[str]) -> npt.NDArray[np.float32]:
    """Return a vector of length 1 for each text."""
    return model().embed(texts, norm=True)


def key_of(vector: npt.NDArray[np.float32]) -> int:
    """Return a hash of a vector. So a vector that changes has another key in the index."""
    return int.from_bytes(hashlib.blake2b(vector.tobytes(), digest_size=8).digest()) >> 1


def embed(source: Path) -> Iterator[Passage]:
    """Yield the paragraphs of a text with their vectors."""
    paragraphs = [" ".join(part.split()) for part in source.read_text().split("\n\n")]
    texts = [text for text in paragraphs if text]
    if not texts:
        return
    for number, (text, vector) in enumerate(zip(texts, encode(texts), strict=True)):
        yield {"paragraph": number, "text": text, "key": key_of(vector), "vector": vector}
