"""The descriptions of the steps of a dataset's runs, by the identity of the step."""

import json
from collections.abc import Mapping
from typing import Any

from batchmill.layout import STEPS
from batchmill.ledger.json_file import read_json
from batchmill.storage import Store, if_exists


class StepDescriptions:
    """The descriptions of the steps that a dataset's runs have used.

    A later run compares its own step with them and reports the changes.

    Args:
        store: The store of the dataset.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def record(self, identity: str, description: Mapping[str, Any]) -> None:
        """Record the description of a step, unless it exists already.

        Args:
            identity: The identity of the step.
            description: JSON values, such as the reference, the params and the digests of its code.

        Raises:
            StoreError: The dataset cannot be written.
        """
        text = json.dumps(description, indent=2, ensure_ascii=False)
        self._store.create(self._name(identity), text.encode())

    def read(self, identity: str) -> dict[str, Any] | None:
        """Return the description of a step.

        Args:
            identity: The identity of the step.

        Returns:
            The description; None if it was not recorded.

        Raises:
            LedgerError: The description is damaged.
            StoreError: The dataset cannot be read.
        """
        return if_exists(read_json, self._store, self._name(identity))

    def _name(self, identity: str) -> str:
        return f"{STEPS}/{identity}.json"
