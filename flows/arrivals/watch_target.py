"""What is watched for new data, and for which deployment: checked, and completed from it."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx
from batchmill.blocks.dataset_store import as_store
from batchmill.blocks.saved_job import SavedJob, as_job
from batchmill.flows.services.api import trouble_with_server
from prefect.blocks.core import Block
from prefect.client.orchestration import get_client
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.settings import PREFECT_API_URL

from batchmill.allowlist import check_dataset
from batchmill.arrivals import Mark, look, recorded
from batchmill.errors import OptionError, ServiceError
from batchmill.ledger.ledger import Ledger
from batchmill.ledger.open import open_ledger
from batchmill.manifest.listing import is_glob
from batchmill.manifest.min_age import check_settle
from batchmill.storage import is_url, open_store, remote
from batchmill.storage.access import Access, access_to
from batchmill.storage.urls import absolute, hide_secrets

# The run that follows judges by a clock that may be another machine's.
_MARGIN_SECONDS = 1.0
_REFER = "See what there is with: prefect block ls. Deploy it again with one of these."


@dataclass(frozen=True, kw_only=True)
class WatchTarget:
    """A source of new data: `source` is absolute, or a URL.

    A file has settled after `settle_seconds`. `deployment` is FLOW/NAME, or empty; `dataset` is
    what its runs make, empty if it does not say. `access` opens what is in its store.
    Nobody `listens` where no automation runs it.
    """

    source: str
    pattern: str
    settle_seconds: float
    deployment: str = ""
    deployment_id: UUID | None = None
    dataset: str = ""
    access: Sequence[Access] = ()
    listens: bool = True

    def look(self) -> dict[str, Mark]:
        """Return the files that are there now, by name. Raises ManifestError, StoreError."""
        with access_to(self.access):
            return look(self.source, self.pattern)


def watched(
    source: str, *, deployment: str = "", pattern: str | None = None, settle_seconds: float = 60
) -> WatchTarget:
    """Check what is to be watched.

    `pattern` is by default the deployment's; a file settles no sooner than the deployment's runs
    take it. Raises OptionError, ServiceError if the server is not there, StoreError.
    """
    check_settle(settle_seconds)
    found, listens = _find(deployment) if deployment else (None, True)
    parameters = _parameters_of(deployment, found) if found else {}
    settle = max(settle_seconds, _number(parameters.get("settle_seconds")))
    output, store = parameters.get("output"), _block(deployment, parameters, "store", as_store)
    if isinstance(output, str):
        output = os.path.expanduser(store.place_of(output) if store else output)
    return WatchTarget(
        source=_checked_source(source),
        pattern=pattern if pattern is not None else str(parameters.get("pattern") or "*"),
        settle_seconds=settle + _MARGIN_SECONDS if settle else 0,
        deployment=deployment,
        deployment_id=found.id if found else None,
        # A relative one is of another process's working directory.
        dataset=output
        if isinstance(output, str) and (is_url(output) or os.path.isabs(output))
        else "",
        access=store.access if store else [],
        listens=listens,
    )


def _parameters_of(name: str, deployment: DeploymentResponse) -> dict[str, Any]:
    """Return what a deployment's runs are given; a saved job's, where it is one."""
    job = _block(name, deployment.parameters, "job", as_job)
    if job is None:
        return deployment.parameters
    if not isinstance(job, SavedJob):
        raise OptionError(f"--deployment {name}: its job is no saved one. {_REFER}")
    return job.parameters()


def _block(
    deployment: str, parameters: Mapping[str, Any], name: str, make: Callable[[Any], Any]
) -> Any:
    """Return the block that a deployment's parameter is, or refers to; None if there is none."""
    given = parameters.get(name)
    try:
        if isinstance(given, dict) and "$ref" in given:
            given = Block.load_from_ref(given["$ref"], _sync=True)  # type: ignore[call-arg]
        return make(given) if given else None
    except httpx.HTTPError as error:
        raise _no_answer(error) from error
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError, PrefectException):
        # What it says may have all that was saved in it, secrets too.
        raise OptionError(
            f"--deployment {deployment}: its {name} is a block that is gone, or does not fit this "
            f"version of batchmill. {_REFER}"
        ) from None


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and value > 0 else 0.0


def _checked_source(source: str) -> str:
    if not source:
        raise OptionError("SOURCE has no name. Name a folder, or a bucket's prefix.")
    try:
        source.encode()
    except UnicodeEncodeError as error:
        raise OptionError(f"{source!r}: is not UTF-8. Rename the folder.") from error
    place = absolute(source)
    if is_url(place):
        remote.check_url(place)
        remote.check_bucket(place)
        is_file = not place.endswith("/") and not is_glob(place) and bool(remote.look(place))
    else:
        is_file = os.path.exists(place) and not os.path.isdir(place)
    if is_file:
        raise OptionError(f"{source}: is a file. Name the folder that new files come into.")
    if is_glob(place) and (is_url(place) or not os.path.exists(place)):
        raise OptionError(f"{source}: is a pattern. Name the folder, and give --pattern.")
    return place.rstrip("/") or "/"


def _find(deployment: str) -> tuple[DeploymentResponse, bool]:
    """Return a deployment, and whether there is an automation about it."""
    try:
        with get_client(sync_client=True) as client:
            try:
                found = client.read_deployment_by_name(deployment)
                about_it = client.read_resource_related_automations(
                    f"prefect.deployment.{found.id}"
                )
                return found, any(automation.enabled for automation in about_it)
            except (ObjectNotFound, ValueError):
                there = client.read_deployments()
                flows = {flow: client.read_flow(flow).name for flow in {d.flow_id for d in there}}
    except httpx.HTTPError as error:
        raise _no_answer(error) from error
    names = sorted(f"{flows[made.flow_id]}/{made.name}" for made in there)
    raise OptionError(
        f"--deployment {deployment}: {server()} has no such one (found: "
        f"{', '.join(names) or 'none'}). Give one of them as FLOW/NAME, or deploy it: "
        "prefect deploy --all"
    )


def _no_answer(error: httpx.HTTPError) -> ServiceError:
    what, remedy = trouble_with_server(error)
    return ServiceError(f"{server()} {what}. {remedy}.")


def check_server() -> None:
    """Raise OptionError unless a Prefect server is named: a temporary one has no deployments."""
    if not PREFECT_API_URL.value():
        raise OptionError(
            "no Prefect server is named, and a temporary one would have no deployments. Start one "
            "(prefect server start), and set PREFECT_API_URL to its address, which ends in /api."
        )


def server() -> str:
    """Name the Prefect server for a message."""
    return f"The Prefect server at {hide_secrets(str(PREFECT_API_URL.value()))}"


def known_of(watched: WatchTarget) -> dict[str, Mark]:
    """Return what the ledger of a deployment's dataset knows.

    Raises OptionError if there is no dataset, or none that can be seen from here, LedgerError,
    StoreError.
    """
    if not watched.dataset:
        raise OptionError(f"{watched.deployment or 'no deployment'}: names no dataset.")
    place = absolute(watched.dataset)
    with access_to(watched.access):
        check_dataset(place)
        if not Ledger(open_store(place)).exists:
            # Nothing is wrong with that: the first run makes it.
            raise OptionError(f"the dataset {watched.dataset} is not made yet.")
        return recorded(open_ledger(place))
