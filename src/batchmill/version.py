"""The version of batchmill, and how it is installed. No other file contains them."""

VERSION = "0.1.0"
# A release on an index of packages leaves the address away.
_ADDRESS = " @ git+https://github.com/batchmill/batchmill"


def install_command(extra: str) -> str:
    """Return the command that installs batchmill with an extra.

    >>> install_command("audio")
    "pip install 'batchmill[audio] @ git+https://github.com/batchmill/batchmill'"
    """
    return f"pip install 'batchmill[{extra}]{_ADDRESS}'"
