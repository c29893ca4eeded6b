r"""Names for files whose real name is not UTF-8. Ledgers and tables hold only UTF-8 text.

Each byte that is not UTF-8 becomes `\x` and two hex digits.
"""

import os
import re

_ESCAPED_BYTE = re.compile(rb"\\x([89a-f][0-9a-f])")


def escape_name(name: str) -> str:
    r"""Return a file name as text that can be written as UTF-8.

    >>> escape_name(os.fsdecode(b"caf\xe9.wav"))
    'caf\\xe9.wav'
    """
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def has_escaped_file(path: str) -> bool:
    """Return whether `escape_name` has made this path from the path of an existing file."""
    real = _ESCAPED_BYTE.sub(lambda byte: bytes.fromhex(byte[1].decode()), os.fsencode(path))
    return real != os.fsencode(path) and os.path.lexists(real)
