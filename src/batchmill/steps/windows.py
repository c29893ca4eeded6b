"""Windows of one length over something longer."""

from collections.abc import Iterator


def windows(
    length: int, size: int, overlap: int, *, include_last: bool = True
) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of windows of `size`, each sharing `overlap` with the next.

    None lies in another. With `include_last`, they cover all of `length`: the last may be shorter.

    >>> list(windows(10, 4, 1))
    [(0, 4), (3, 7), (6, 10)]
    >>> list(windows(10, 4, 0))
    [(0, 4), (4, 8), (8, 10)]
    >>> list(windows(10, 4, 0, include_last=False))
    [(0, 4), (4, 8)]
    """
    if overlap >= size:
        raise ValueError(f"overlap ({overlap}) must be below size ({size})")
    start = 0
    while start + size < length:
        yield start, start + size
        start += size - overlap
    if length and (include_last or start + size == length):
        yield start, length
