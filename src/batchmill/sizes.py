"""Format sizes for messages."""

_UNITS = ("bytes", "KiB", "MiB", "GiB")


def readable_size(count: float) -> str:
    """Return a size in bytes as a readable text.

    >>> readable_size(512), readable_size(3 * 2**20)
    ('512 bytes', '3.0 MiB')
    """
    amount = float(count)
    for unit in _UNITS:
        if amount < 1024:
            return f"{amount:,.0f} {unit}" if unit == "bytes" else f"{amount:,.1f} {unit}"
        amount /= 1024
    return f"{amount:,.1f} TiB"
