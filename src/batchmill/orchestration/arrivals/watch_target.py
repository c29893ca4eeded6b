"""Check a source and a deployment, and complete the options from the deployment."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx
from prefect.blocks.core import Block
from prefect.client.orchestration import get_client
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.settings import PREFECT_API_URL

from batchmill.blocks.dataset_store import DatasetStore, as_store
from batchmill.blocks.saved_job import SavedJob, as_job
from batchmill.core.layout import FORMAT
from batchmill.core.ledger.open import open_ledger
from batchmill.core.manifest.file_stats import check_min_age
from batchmill.core.manifest.listing import is_glob
from batchmill.core.options.job_options import WATCH_MIN_AGE, InputOptions
from batchmill.core.security.allowlist import check_dataset
from batchmill.core.security.credentials import Access, access_to
from batchmill.core.storage import is_url, open_store, remote
from batchmill.core.urls import absolute
from batchmill.errors import OptionError, ServiceError
from batchmill.orchestration.arrivals.detection import FileVersion, list_files, recorded_versions
from batchmill.orchestration.server.api import shown_api, trouble_with_server

# The next run may compare file times with the clock of another machine.
_MARGIN_SECONDS = 1.0
_LIST_BLOCKS = "List the blocks: prefect block ls. Deploy again with one of them."


@dataclass(frozen=True, kw_only=True)
class WatchTarget:
    """A source of new data, and the deployment to run on it.

    Attributes:
        source: An absolute path or a URL.
        pattern: Only files whose relative path or name matches are announced.
        min_age: A file is announced after it has been unchanged for this many seconds.
        folders: True if each sub-folder is one input.
        deployment: FLOW/NAME, or empty.
        deployment_id: The ID of the deployment. None without a deployment.
        dataset: The dataset that the deployment's runs write. Empty if it is unknown.
        access: The credentials of the dataset's store.
        has_automation: True if an automation runs the deployment, or if there is no deployment.
    """

    source: str
    pattern: str
    min_age: float
    folders: bool = False
    deployment: str = ""
    deployment_id: UUID | None = None
    dataset: str = ""
    access: Sequence[Access] = ()
    has_automation: bool = True

    def list_files(self) -> dict[str, FileVersion]:
        """List the files that exist now, by name.

        Returns:
            The files that match the pattern.

        Raises:
            ManifestError: The source cannot be read, or a run would reject it.
            StoreError: The store cannot be opened.
        """
        with access_to(self.access):
            return list_files(self.source, self.pattern, folders=self.folders)


def watched(
    source: str, *, deployment: str = "", pattern: str = "", min_age: float = WATCH_MIN_AGE
) -> WatchTarget:
    """Check a source and a deployment.

    Args:
        source: A folder, or the URL of a bucket prefix.
        deployment: The deployment to run, as FLOW/NAME. Empty: no deployment.
        pattern: Only files whose relative path or name matches are announced. Default: the
            deployment's pattern.
        min_age: How many seconds a file must be unchanged. The deployment's value is used if it is
            larger, because the deployment's runs skip younger files.

    Returns:
        The source and the deployment.

    Raises:
        OptionError: An option cannot be used, or there is no such deployment.
        ServiceError: The Prefect server does not respond.
        StoreError: The URL cannot be used.
    """
    check_min_age(min_age)
    response, has_automation = _find_deployment(deployment) if deployment else (None, True)
    parameters = _parameters_of(deployment, response) if response else {}
    inputs = _inputs_of(parameters)
    min_age = max(min_age, inputs.min_age)
    store = _block(deployment, parameters, "store", as_store)
    dataset = _dataset(parameters.get("output"), store)
    return WatchTarget(
        source=_checked_source(source),
        pattern=pattern or inputs.pattern,
        min_age=min_age + _MARGIN_SECONDS if min_age else 0,
        folders=inputs.input_kind == "folder",
        deployment=deployment,
        deployment_id=response.id if response else None,
        dataset=dataset,
        access=store.access if store else [],
        has_automation=has_automation,
    )


def _dataset(output: object, store: DatasetStore | None) -> str:
    """Return the place of a deployment's dataset. Empty if it is unknown."""
    if not isinstance(output, str):
        return ""
    place = os.path.expanduser(store.place_of(output) if store else output)
    # A relative path depends on the working directory of the process that runs the deployment.
    return place if is_url(place) or os.path.isabs(place) else ""


def _parameters_of(name: str, deployment: DeploymentResponse) -> dict[str, Any]:
    """Return the parameters of a deployment's saved job, else of the deployment itself."""
    job = _block(name, deployment.parameters, "job", as_job)
    if job is None:
        return deployment.parameters
    if not isinstance(job, SavedJob):
        raise OptionError(f"--deployment {name}: its job is not a saved job. {_LIST_BLOCKS}")
    return job.parameters()


def _block(
    deployment: str, parameters: Mapping[str, Any], name: str, make: Callable[[Any], Any]
) -> Any:
    """Return the block in a deployment's parameter. None if the parameter has no block."""
    value = parameters.get(name)
    try:
        if isinstance(value, dict) and "$ref" in value:
            value = Block.load_from_ref(value["$ref"], _sync=True)  # type: ignore[call-arg]
        return make(value) if value else None
    except httpx.HTTPError as error:
        raise _server_trouble(error) from error
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError, PrefectException):
        # The message of the original error may contain the block's secrets.
        raise OptionError(
            f"--deployment {deployment}: its {name} is a block that does not exist, or that this "
            f"version of batchmill cannot read. {_LIST_BLOCKS}"
        ) from None


def _inputs_of(parameters: Mapping[str, Any]) -> InputOptions:
    """Return the input options of a deployment's runs, or the defaults if they are not valid.

    A deployment may have a template instead of a value. Its runs report errors in the options.
    """
    inputs = parameters.get("inputs")
    try:
        return InputOptions.model_validate(inputs if inputs is not None else {})
    except OptionError:
        return InputOptions()


def _checked_source(source: str) -> str:
    if not source:
        raise OptionError("SOURCE has no name. Name a folder or a bucket prefix.")
    try:
        source.encode()
    except UnicodeEncodeError as error:
        raise OptionError(f"{source!r}: is not UTF-8. Rename the folder.") from error
    place = absolute(source)
    if is_url(place):
        remote.check_url(place)
        remote.check_bucket(place)
        is_file = not place.endswith("/") and not is_glob(place) and bool(remote.stat(place))
    else:
        is_file = os.path.exists(place) and not os.path.isdir(place)
    if is_file:
        raise OptionError(f"{source}: is a file. Name the folder that new files arrive in.")
    if is_glob(place) and (is_url(place) or not os.path.exists(place)):
        raise OptionError(f"{source}: is a pattern. Name the folder, and use --pattern.")
    return place.rstrip("/") or "/"


def _find_deployment(deployment: str) -> tuple[DeploymentResponse, bool]:
    """Return a deployment, and whether an enabled automation refers to it."""
    try:
        with get_client(sync_client=True) as client:
            try:
                response = client.read_deployment_by_name(deployment)
                automations = client.read_resource_related_automations(
                    f"prefect.deployment.{response.id}"
                )
                return response, any(automation.enabled for automation in automations)
            except (ObjectNotFound, ValueError):
                others = client.read_deployments()
                flows = {flow: client.read_flow(flow).name for flow in {d.flow_id for d in others}}
    except httpx.HTTPError as error:
        raise _server_trouble(error) from error
    names = sorted(f"{flows[made.flow_id]}/{made.name}" for made in others)
    raise OptionError(
        f"--deployment {deployment}: The Prefect server at {shown_api()} has no such "
        f"deployment (found: {', '.join(names) or 'none'}). Name one of them as "
        "FLOW/NAME, or create it: prefect deploy --all"
    )


def _server_trouble(error: httpx.HTTPError) -> ServiceError:
    what, remedy = trouble_with_server(error)
    return ServiceError(f"The Prefect server at {shown_api()} {what}. {remedy}.")


def check_server() -> None:
    """Check that a Prefect server is configured. A temporary server has no deployments.

    Raises:
        OptionError: PREFECT_API_URL is not set.
    """
    if not PREFECT_API_URL.value():
        raise OptionError(
            "no Prefect server is configured, and a temporary server has no deployments. Start a "
            "server (prefect server start), and set PREFECT_API_URL to its address, which ends in "
            "/api."
        )


def read_recorded_versions(target: WatchTarget) -> dict[str, FileVersion]:
    """Return the inputs that the dataset of a deployment records.

    Args:
        target: The deployment and its dataset.

    Returns:
        The recorded inputs by name.

    Raises:
        OptionError: The dataset does not exist, or its place is unknown.
        LedgerError: The ledger cannot be read.
        StoreError: The store cannot be read.
    """
    if not target.dataset:
        raise OptionError(f"{target.deployment or 'no deployment'}: its dataset is unknown.")
    place = absolute(target.dataset)
    with access_to(target.access):
        check_dataset(place)
        if not open_store(place).exists(FORMAT):
            # This is normal: the first run creates the dataset.
            raise OptionError(f"the dataset {target.dataset} does not exist yet.")
        return recorded_versions(open_ledger(place))
