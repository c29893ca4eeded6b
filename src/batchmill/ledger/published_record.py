"""The record of the published tables: what they were made of, and their hashes."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from batchmill.errors import LedgerError
from batchmill.layout import PUBLISHED, TABLES
from batchmill.ledger.json_file import read_sealed, sealed
from batchmill.storage import Store, if_exists, in_threads


@dataclass(frozen=True, kw_only=True)
class PublishedRecord:
    """The record of the tables that a run has published.

    Attributes:
        run: The number of the run.
        made_of: A hash of everything that the tables depend on.
        tables: The size in bytes and the content hash of each table.
    """

    run: int
    made_of: str
    tables: Mapping[str, Mapping[str, Any]]

    def write(self, store: Store) -> None:
        """Write the record to a dataset. Raises StoreError."""
        store.write(PUBLISHED, sealed(asdict(self)))

    def matches(self, store: Store) -> bool:
        """Return whether the tables in a dataset are those that were published.

        The tables are read. Raises StoreError.
        """
        contents = in_threads(lambda name: if_exists(store.content_of, name), TABLES, store.threads)
        return contents == [self.tables.get(name, {}).get("content") for name in TABLES]


def read_published_record(store: Store) -> PublishedRecord | None:
    """Return the record of a dataset's tables; None if it is missing or damaged."""
    with suppress(LedgerError, TypeError):
        content = if_exists(read_sealed, store, PUBLISHED, "The next run writes it again.")
        return PublishedRecord(**content) if content else None
    return None
