"""What is asked of a run that a deployment's worker has started, and told by it."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from batchmill.blocks.dataset_store import DatasetStore
from batchmill.blocks.ray_cluster import RayCluster
from batchmill.blocks.saved import check_saved
from prefect.context import FlowRunContext

from batchmill.errors import OptionError, StepError
from batchmill.storage.urls import is_url

# How Prefect's worker calls the folder that it makes for a run, and removes after it.
_SUFFIX = "prefect"


def refuse_relative(**places: str | None) -> None:
    """Refuse relative paths in a deployment's run whose folder is gone in the end.

    A deployment that takes its runs to a folder of its own may have them. Raises OptionError.
    """
    if not _is_deployed():
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


@contextmanager
def finding_step(step: str) -> Iterator[None]:
    """Say, of a step's module that a deployment's run does not find, where a worker finds one.

    There is no folder to go to for whoever reads it in the UI.
    """
    try:
        yield
    except StepError as error:
        cause, module = error.__cause__, step.partition(":")[0]
        if not isinstance(cause, ModuleNotFoundError) or not _is_deployed():
            raise
        if not f"{module}.".startswith(f"{cause.name}."):
            raise  # Another one, which it imports.
        raise StepError(
            f"step {step}: no module {cause.name!r} where the worker runs. Check the spelling; or "
            "install it there, have its folder on the worker's PYTHONPATH, or a `pull` step that "
            "goes to its folder, as in examples/project."
        ) from cause  # What it says of folders is not for here.


def check_blocks(store: DatasetStore | None, cluster: RayCluster | None) -> None:
    """Raise OptionError for a store or cluster that may not be used here."""
    check_saved(store, "store")
    # A Ray on this machine with an empty runtime environment runs nothing but the step.
    if cluster and not (cluster.is_local and not cluster.runtime_env):
        check_saved(cluster, "cluster")


def _is_deployed() -> bool:
    context = FlowRunContext.get()
    run = context.flow_run if context else None
    return run is not None and run.deployment_id is not None
