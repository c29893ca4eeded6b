"""Load blocks that are saved in the Prefect API: block:NAME. And the form of all blocks."""

from typing import Any

from prefect.blocks.core import Block
from pydantic import ConfigDict, HttpUrl

from batchmill.core.options.validation import FIELDS_IN_FORMS
from batchmill.core.security.allowlist import restrictions
from batchmill.errors import OptionError

_SAVED = "block:"
_LOGOS = "https://raw.githubusercontent.com/PrefectHQ/prefect/420d0d6a78bb6df1fc18bcf188fdad43c1d22ea9/assets/block-logos"
# Pydantic's messages would contain the rejected values, including secrets.
FORM = ConfigDict(hide_input_in_errors=True, **FIELDS_IN_FORMS)


def logo(name: str) -> HttpUrl:
    """Return the address of one of Prefect's own logos. A logo must be on the web."""
    return HttpUrl(f"{_LOGOS}/{name}.png")


def saved_name(given: object) -> str | None:
    """Return the NAME of block:NAME; None for anything else."""
    is_name = isinstance(given, str) and given.startswith(_SAVED)
    return str(given).removeprefix(_SAVED) if is_name else None


def load_saved(option: str, name: str, *kinds: type[Block]) -> Any:
    """Fetch a saved block from the Prefect API.

    Args:
        option: The option that error messages name.
        name: NAME of a block of the first kind, or TYPE/NAME of a block of any kind.
        *kinds: The accepted kinds.

    Raises:
        OptionError: The block does not exist, or is of another kind.
    """
    asked: type[Block] = Block if "/" in name else kinds[0]
    try:
        saved = asked.load(name, _sync=True)  # type: ignore[call-arg]
    except ValueError as error:
        called = kinds[0].get_block_type_slug()
        raise OptionError(
            f"{option} {_SAVED}{name}: there is no saved block of this name (of type {called}). "
            "To list the saved blocks: prefect block ls"
        ) from error
    except RuntimeError:
        # The text of this error contains all saved values, including secrets.
        raise OptionError(
            f"{option} {_SAVED}{name}: the saved block does not fit this version of batchmill. "
            "Save it again."
        ) from None
    if not isinstance(saved, kinds):
        wanted = " or ".join(kind.get_block_type_slug() for kind in kinds)
        raise OptionError(f"{option} {_SAVED}{name}: is not a block of type {wanted}.")
    return saved


def loaded(option: str, given: object, *kinds: type[Block]) -> Any:
    """Fetch block:NAME, see `load_saved`. Other values are returned unchanged."""
    name = saved_name(given)
    return given if name is None else load_saved(option, name, *kinds)


def check_saved(block: Block | None, option: str) -> None:
    """Raise OptionError for a block that is not saved, if a restriction is set.

    An unsaved block could be a cluster that runs any code, or a store that opens any place.
    """
    limits = restrictions()
    if limits and block is not None and block._block_document_id is None:
        raise OptionError(
            f"{option}: must be a saved block ({_SAVED}NAME), because {limits[0]} is set."
        )
