"""Read the size of an option, such as 2G or 256MB."""

import re

from batchmill.errors import OptionError

# The pattern for forms. Prefect's messages would print a backslash doubled.
SIZE_PATTERN = "^ *([0-9]+([.][0-9]+)? *[KMGTkmgt]?[Ii]?[Bb]?)? *$"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", re.IGNORECASE)
_FACTORS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_size(text: str, option: str) -> int:
    """Convert a size with a unit to bytes. Raises OptionError, which names the option.

    >>> [parse_size(text, "--pack") for text in ("500M", "2G", "1.5 GiB", "1048576")]
    [524288000, 2147483648, 1610612736, 1048576]
    """
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise OptionError(f"{option} {text}: expected a size such as 2G or 500M.")
    return int(float(match[1]) * _FACTORS[match[2].upper()])
