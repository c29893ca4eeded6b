"""Divide a length into windows of equal size."""

from collections.abc import Iterator


def windows(
    length: int, size: int, overlap: int, *, include_last: bool = True
) -> Iterator[tuple[int, int]]:
    """Divide a length into windows. No window lies within another.

    Args:
        length: The length to divide.
        size: The size of a window.
        overlap: The part that a window shares with the next.
        include_last: True to keep the rest at the end as a shorter window.

    Yields:
        The start and the end of each window.

    Raises:
        ValueError: The overlap is not below the size.

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
