"""Read the small JSON files of a ledger."""

import json
from typing import Any

from batchmill.errors import LedgerError
from batchmill.storage import Store


def read_json(store: Store, name: str, *keys: str) -> dict[str, Any]:
    """Read a JSON object.

    Args:
        store: The store of the dataset.
        name: The name of the file in the store.
        *keys: The keys that the object must have.

    Returns:
        The object.

    Raises:
        LedgerError: The file does not contain a JSON object with these keys.
        StoreError: The file cannot be read.
    """
    try:
        content: dict[str, Any] = json.loads(store.read(name))
        if isinstance(content, dict) and set(keys) <= content.keys():
            return content
    except ValueError:
        pass
    raise LedgerError(
        f"{store.url_of(name)}: is damaged, or is not a file of this ledger. Move it away, and "
        "run the same command again."
    )
