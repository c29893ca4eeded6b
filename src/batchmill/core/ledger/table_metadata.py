"""The metadata of a published table: what the columns mean that batchmill has added."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from batchmill.core.layout import OUTPUT_COLUMN

_KEY = b"batchmill"


@dataclass(frozen=True, kw_only=True)
class TableMetadata:
    """The columns that batchmill has added to a table.

    Attributes:
        stale: The column that is true in rows of earlier results. Empty without such rows.
        packs: For each column with files, the column with their addresses in packs. Empty text if
            no file is in a pack. The column `output` is listed only if it has addresses.
    """

    stale: str = ""
    packs: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, schema: pa.Schema) -> "TableMetadata":
        """Read the metadata of a table."""
        return cls(**json.loads((schema.metadata or {}).get(_KEY, b"{}")))

    def as_arrow(self) -> dict[bytes, str] | None:
        """Return the metadata for the schema of a table, or None if it would be empty."""
        return {_KEY: json.dumps(vars(self))} if self.stale or self.packs else None

    @property
    def pack(self) -> str:
        """The column with the addresses of outputs in packs. Empty without packs."""
        return self.packs.get(OUTPUT_COLUMN, "")

    @property
    def further(self) -> list[str]:
        """The columns with further files of a row."""
        return [name for name in self.packs if name != OUTPUT_COLUMN]

    @property
    def added(self) -> set[str]:
        """The names of the added columns."""
        return {name for name in (self.stale, *self.packs.values()) if name}
