"""A table in the Prefect UI of the inputs that fail, while the run is still going on."""

import json
import logging
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from prefect.artifacts import TableArtifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.exceptions import PrefectException
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from batchmill.digests import readable_id
from batchmill.progress import Progress

logger = logging.getLogger(__name__)

_PAUSE_SECONDS = 30.0


class FailureArtifact:
    """The artifact `failures-NAME-HASH`: made at a run's first failure, then kept current."""

    def __init__(self, dataset: str) -> None:
        self._dataset = dataset
        self._id: UUID | None = None
        self._shown = 0
        self._next = 0.0

    def show(self, progress: Progress) -> None:
        """Bring the table up to date, if there are new failures.

        A server that does not answer is no reason to end a run: a later call tries again.
        """
        if progress.failed == self._shown or time.monotonic() < self._next:
            return
        rows = [failure._asdict() for failure in progress.failures]
        try:
            # The client's own patience would hold the run up for minutes.
            with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}):
                self._send(rows, self._describe(progress))
        except (httpx.HTTPError, PrefectException) as error:
            self._next = time.monotonic() + _PAUSE_SECONDS
            logger.warning("the table of failures could not be sent to Prefect: %s", error)
        else:
            self._shown = progress.failed

    def _send(self, rows: list[dict[str, object]], description: str) -> None:
        if self._id is None:
            artifact = TableArtifact(key=self._key(), table=rows, description=description)
            made: Any = artifact.create(_sync=True)  # type: ignore[call-arg]
            self._id = made.id
            return
        update = ArtifactUpdate(data=json.dumps(rows), description=description)
        with get_client(sync_client=True) as client:
            client.update_artifact(self._id, update)

    def _key(self) -> str:
        return f"failures-{readable_id('dataset', Path(self._dataset).name, self._dataset)}".lower()

    def _describe(self, progress: Progress) -> str:
        first = f"the first {len(progress.failures):,} of " if self._is_cut(progress) else ""
        return (
            f"Inputs of `{self._dataset}` that are not ok in run {progress.run}: {first}"
            f"{progress.failed:,}. With tracebacks: `batchmill failures {self._dataset}`"
        )

    def _is_cut(self, progress: Progress) -> bool:
        return progress.failed > len(progress.failures)
