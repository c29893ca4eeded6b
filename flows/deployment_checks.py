"""Checks of a deployment's run, which a Prefect worker starts in a folder of its own."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from batchmill.blocks.dataset_store import DatasetStore
from batchmill.blocks.ray_cluster import RayCluster
from batchmill.blocks.saved_block import check_saved
from prefect.context import FlowRunContext

from batchmill.core.urls import is_url
from batchmill.errors import OptionError, StepError

# Prefect's worker gives a run a temporary folder with this suffix and removes it afterwards.
_SUFFIX = "prefect"


def refuse_relative(**places: str | None) -> None:
    """Reject relative paths in a deployment's run that works in a temporary folder.

    Relative paths are allowed if a `pull` step of the deployment changes to a permanent folder.

    Args:
        places: The paths and URLs by the name of their parameter.

    Raises:
        OptionError: A path is relative, and its folder is removed after the run.
    """
    if not _is_deployed():
        return
    here = Path.cwd().name
    if not (here.startswith(tempfile.template) and here.endswith(_SUFFIX)):
        return
    for name, place in places.items():
        if place is not None and not is_url(place) and not os.path.isabs(os.path.expanduser(place)):
            raise OptionError(
                f"{name} {place or '(empty)'}: a deployment's run works in a temporary folder. "
                "Give an absolute path or a URL."
            )


@contextmanager
def finding_step(step: str) -> Iterator[None]:
    """Replace the error about a missing step module in a deployment's run.

    The original message is about the folder of a command, which a user of the UI does not have.

    Args:
        step: The step that the block loads.

    Raises:
        StepError: The step cannot be loaded.
    """
    try:
        yield
    except StepError as error:
        cause, module = error.__cause__, step.partition(":")[0]
        if not isinstance(cause, ModuleNotFoundError) or not _is_deployed():
            raise
        if not f"{module}.".startswith(f"{cause.name}."):
            raise  # The step's module exists, but one of its imports is missing.
        raise StepError(
            f"step {step}: no module {cause.name!r} where the worker runs. Check the spelling. "
            "Otherwise install the module there, add its folder to the worker's PYTHONPATH, or "
            "change to its folder in a `pull` step, as the prefect.yaml of `batchmill init` does."
        ) from cause


def check_blocks(store: DatasetStore | None, cluster: RayCluster | None) -> None:
    """Check that the rules for saved blocks allow a store and a cluster.

    Raises:
        OptionError: The store or the cluster may not be used here.
    """
    check_saved(store, "store")
    # A local Ray without a runtime environment runs only the step, so it is always allowed.
    if cluster and not (cluster.is_local and not cluster.runtime_env):
        check_saved(cluster, "cluster")


def _is_deployed() -> bool:
    context = FlowRunContext.get()
    run = context.flow_run if context else None
    return run is not None and run.deployment_id is not None
