"""Format sizes, numbers and durations for messages."""

from collections.abc import Mapping

_UNITS = ("bytes", "KiB", "MiB", "GiB")


def readable_size(count: float) -> str:
    """Return a size in bytes as a readable text.

    >>> readable_size(512), readable_size(3 * 2**20)
    ('512 bytes', '3.0 MiB')
    """
    amount = float(count)
    for unit in _UNITS:
        if amount < 1024:
            return counted(round(amount), "byte") if unit == "bytes" else f"{amount:,.1f} {unit}"
        amount /= 1024
    return f"{amount:,.1f} TiB"


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with a noun. The default plural is the noun with an s.

    >>> counted(1, "file"), counted(2000, "file"), counted(2, "input is", "inputs are")
    ('1 file', '2,000 files', '2 inputs are')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def list_counts(counts: Mapping[str, int]) -> str:
    """Return the counts that are not 0 as a readable text.

    >>> list_counts({"ok": 2000, "failed": 0, "timeout": 1})
    '2,000 ok, 1 timeout'
    """
    return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)


def duration(seconds: float) -> str:
    """Return a duration as readable text.

    >>> duration(0.0123), duration(3.21), duration(75), duration(7384)
    ('12 ms', '3.2 s', '1 min 15 s', '2 h 03 min')
    """
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"
