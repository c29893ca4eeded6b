"""Blocks that are saved in the Prefect API, by the names that users give: block:NAME."""

from typing import Any

from prefect.blocks.core import Block

from batchmill.allowlist import restrictions
from batchmill.errors import OptionError

_SAVED = "block:"


def saved_name(given: object) -> str | None:
    """Return the NAME of block:NAME; None for anything else."""
    is_name = isinstance(given, str) and given.startswith(_SAVED)
    return str(given).removeprefix(_SAVED) if is_name else None


def load_saved(option: str, name: str, *kinds: type[Block]) -> Any:
    """Ask the Prefect API for a saved block of the first of these kinds, or as TYPE/NAME of any.

    Raises OptionError, in the name of an `option`, if there is none.
    """
    asked: type[Block] = Block if "/" in name else kinds[0]
    try:
        saved = asked.load(name, _sync=True)  # type: ignore[call-arg]
    except ValueError as error:
        called = kinds[0].get_block_type_slug()
        raise OptionError(
            f"{option} {_SAVED}{name}: there is no saved block of this name (of type {called}). "
            "See what there is with: prefect block ls"
        ) from error
    except RuntimeError:
        # What it says has all that was saved in it, secrets too.
        raise OptionError(
            f"{option} {_SAVED}{name}: what was saved does not fit this version of batchmill. "
            "Save it again."
        ) from None
    if not isinstance(saved, kinds):
        wanted = " or ".join(kind.get_block_type_slug() for kind in kinds)
        raise OptionError(f"{option} {_SAVED}{name}: is of another type than {wanted}.")
    return saved


def check_saved(block: Block | None, option: str) -> None:
    """Raise OptionError for a block that nobody has saved, where not everything is allowed.

    What is filled in on the spot could be a cluster that runs anything, or a store that opens it.
    """
    limits = restrictions()
    if limits and block is not None and block._block_document_id is None:
        raise OptionError(
            f"{option}: must be a saved one here, as {_SAVED}NAME, since {limits[0]} is set."
        )
