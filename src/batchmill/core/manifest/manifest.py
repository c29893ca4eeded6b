"""A checked manifest, in memory."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import methodcaller
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.manifest.file_stats import MISSING_SIZE
from batchmill.core.storage.large_tables import SLICE_ROWS


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A checked manifest.

    Attributes:
        name: Its path or URL, for messages.
        root: The folder or URL that relative inputs are relative to.
        inputs: A table with one row per input, in the manifest's order. `input` is the input's
            name. The name of an input below `root` is relative to it. `size` is in bytes, -1
            for a missing file, and -2 if the web server does not send it. `mtime_ns` is the time of
            the last change. The `etag` is null unless the store has ETags.
            The ETag of a file in a pack is its address. `ctime_ns` is the time
            of the last change of the content, the name or the rights; null for remote and missing
            files. `companions` is the digest of the input's companions, and of the
            files of a folder; null without any. If one
            of them does not exist, the `size` is -1.
        companions: The companions of the inputs, row for row: for each file column, a table with
            the columns of `inputs`. A row is null if its cell is empty.
        manifest_columns: The manifest's other columns, row for row.
        too_young: Names of the files that were left out because they are too young. Another
            process may still be writing them.
        groups: The groups of the inputs, as `read_groups` returns them. None without a
            partitioning.
        dataset: The folder or URL of the dataset that is the manifest. Empty for other manifests.
        version: The number of the version of that dataset. 0 without one.
        in_memory: True if it is a list or DataFrame. Its run saves it in the dataset.
    """

    name: str
    root: str
    inputs: pa.Table
    manifest_columns: pa.Table
    companions: Mapping[str, pa.Table] = field(default_factory=dict)
    too_young: pa.Array = field(default_factory=lambda: pa.array([], pa.string()))
    groups: pa.Table | None = None
    dataset: str = ""
    version: int = 0
    in_memory: bool = False

    def __len__(self) -> int:
        return len(self.inputs)

    def slices(self) -> Iterator[tuple[int, "Manifest"]]:
        """Yield the inputs, some at a time: the first one's row, and a manifest without groups."""
        for start in range(0, len(self), SLICE_ROWS):
            yield start, self._part(methodcaller("slice", start, SLICE_ROWS))

    def take(self, rows: pa.Array | pa.ChunkedArray) -> "Manifest":
        """Return a manifest of some rows, without groups."""
        return self._part(methodcaller("take", rows))

    def _part(self, cut: Callable[[pa.Table], pa.Table]) -> "Manifest":
        columns = self.manifest_columns
        return replace(
            self,
            inputs=cut(self.inputs),
            # A table without columns has no rows to cut.
            manifest_columns=cut(columns) if columns.num_columns else columns,
            companions={name: cut(table) for name, table in self.companions.items()},
            groups=None,
        )

    def missing_files(self, names: pa.ChunkedArray) -> list[str]:
        """Return the file that each missing input lacks: a companion, or the input itself."""
        row = pc.index_in(names, value_set=self.inputs["input"])
        files = names
        for table in self.companions.values():
            is_missing = pc.equal(table["size"], MISSING_SIZE).fill_null(False)
            files = pc.if_else(is_missing.take(row), table["input"].take(row), files)
        return [str(file) for file in files.to_pylist()]

    def manifest_rows(self) -> list[dict[str, Any]]:
        """Return the other columns of each input as plain values."""
        if not self.manifest_columns.num_columns:
            return [{} for _ in range(len(self))]
        return list(self.manifest_columns.to_pylist())
