"""Blocks that are saved in the Prefect API, by the names that users give: block:NAME."""

from typing import Any

from prefect.blocks.core import Block

from batchmill.errors import OptionError

_SAVED = "block:"


def saved_name(given: object) -> str | None:
    """Return the NAME of block:NAME; None for anything else."""
    is_name = isinstance(given, str) and given.startswith(_SAVED)
    return str(given).removeprefix(_SAVED) if is_name else None


def load_saved(kind: type[Block], name: str, option: str) -> Any:
    """Ask the Prefect API for a saved block of a kind.

    NAME may be TYPE/NAME for one of another kind. Raises OptionError, in the name of an `option`,
    if there is none.
    """
    asked: type[Block] = Block if "/" in name else kind
    try:
        return asked.load(name, _sync=True)  # type: ignore[call-arg]
    except ValueError as error:
        called = kind.get_block_type_slug()
        raise OptionError(
            f"{option} {_SAVED}{name}: there is no saved block of this name (of type {called}). "
            "See what there is with: prefect block ls"
        ) from error
