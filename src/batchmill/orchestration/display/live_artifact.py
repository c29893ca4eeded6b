"""An artifact that is updated while its flow run is running."""

import logging
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from prefect.artifacts import Artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.exceptions import PrefectException

from batchmill.digests import readable_id
from batchmill.orchestration.server.client_settings import without_retries

logger = logging.getLogger(__name__)

_PAUSE_SECONDS = 30.0
_DIGITS = 4


class LiveArtifact:
    """One artifact. The first call of `show` creates it, and later calls update it."""

    def __init__(self) -> None:
        self._id: UUID | None = None
        self._next = 0.0

    def show(self, artifact: Artifact, data: Any) -> bool:
        """Create the artifact, or update its data and description.

        An error of the server does not end the run. A later call sends the artifact again.

        Args:
            artifact: The artifact with its description.
            data: The new data of an artifact that exists.

        Returns:
            True if the server has accepted the artifact. For 30 s after an error, no request is
            sent, and the result is False.
        """
        if time.monotonic() < self._next:
            return False
        try:
            with without_retries():
                self._send(artifact, data)
        except (httpx.HTTPError, PrefectException) as error:
            self._next = time.monotonic() + _PAUSE_SECONDS
            logger.warning("the artifact %s could not be sent to Prefect: %s", artifact.key, error)
            return False
        return True

    def _send(self, artifact: Artifact, data: Any) -> None:
        if self._id is None:
            made: Any = artifact.create(_sync=True)  # type: ignore[call-arg]
            self._id = made.id
            return
        update = ArtifactUpdate(data=data, description=artifact.description)
        with get_client(sync_client=True) as client:
            client.update_artifact(self._id, update)


def artifact_key(kind: str, dataset: str) -> str:
    """Return an artifact's key: KIND-NAME-HASH. It is the same for all runs over a dataset.

    Prefect shows the key as a title, so the hash is short. It distinguishes datasets of one name.

    >>> artifact_key("progress", "/data/Clips 2024")
    'progress-clips-2024-ed8e'
    """
    return f"{kind}-{readable_id('dataset', Path(dataset).name, dataset, _DIGITS)}".lower()
