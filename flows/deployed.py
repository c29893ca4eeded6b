"""What is asked of a run that a deployment's worker has started."""

import os
import tempfile
from pathlib import Path

from prefect.context import FlowRunContext

from batchmill.errors import OptionError
from batchmill.storage.urls import is_url

# How Prefect's worker calls the folder that it makes for a run, and removes after it.
_SUFFIX = "prefect"


def refuse_relative(**places: str | None) -> None:
    """Refuse relative paths in a deployment's run whose folder is gone in the end.

    A deployment that takes its runs to a folder of its own may have them. Raises OptionError.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or context.flow_run.deployment_id is None:
        return
    here = Path.cwd().name
    if not (here.startswith(tempfile.template) and here.endswith(_SUFFIX)):
        return
    for name, place in places.items():
        if place and not is_url(place) and not os.path.isabs(os.path.expanduser(place)):
            raise OptionError(
                f"{name} {place}: a deployment's run works in a temporary folder. Give an absolute "
                "path or a URL."
            )
