"""The rights of a confined step: the files that it may change, and whether it may connect."""

from collections.abc import Sequence
from dataclasses import dataclass

from batchmill.errors import OptionError
from batchmill.options.groups import ConfinementOptions
from batchmill.security.allowlist import CONFINE, confinement_is_required
from batchmill.urls import absolute


@dataclass(frozen=True, kw_only=True)
class Confinement:
    """The rights of a confined step, besides its own folders.

    Attributes:
        writable: Folders and files that it may change.
        network: True if it may open TCP connections.
    """

    writable: Sequence[str] = ()
    network: bool = False


def make_confinement(options: ConfinementOptions) -> Confinement | None:
    """Return the confinement that options and environment request; None without one.

    Raises OptionError.
    """
    required = confinement_is_required()
    extra = [("--allow-write", options.allow_write), ("--allow-network", options.allow_network)]
    for name, given in extra:
        if given and required:
            raise OptionError(
                f"{name}: is not allowed here, because {CONFINE} is set. Drop the option, or "
                "contact the administrator of the worker."
            )
        if given and not options.confine:
            raise OptionError(f"{name} needs --confine. Add it, or drop {name}.")
    if not (options.confine or required):
        return None
    paths = options.allow_write.split(",")
    return Confinement(
        writable=tuple(absolute(path.strip()) for path in paths if path.strip()),
        network=options.allow_network,
    )
