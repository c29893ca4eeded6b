"""The files of snapshots: states and tables. Each must have the hash that its snapshot has."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import pyarrow as pa
import pyarrow.parquet as pq

from batchmill.core import layout
from batchmill.core.ledger.snapshots import Snapshot, Snapshots
from batchmill.core.ledger.state import STATE_SCHEMA, State
from batchmill.core.storage import in_threads
from batchmill.core.storage.fingerprints import hash_bytes
from batchmill.core.storage.large_tables import SLICE_ROWS, collected
from batchmill.core.storage.store import write_and_hash
from batchmill.errors import LedgerError, StoreError

# The keys of the names of parts, and of the libraries, in the metadata of a state's file.
_PARTS_KEY, _LIBRARIES_KEY = b"batchmill.parts", b"batchmill.libraries"
_NO_TABLE = (
    "To write the table of the last version again, run the job of the dataset. Restore that of an "
    "earlier version from a backup."
)
_KEEP = "Name another version, or keep more of them (--keep-versions)."
_NO_STATE = (
    "Move it and the snapshot away, and run the same command again. The earlier snapshot and later "
    "outcomes then count."
)


class SnapshotFiles:
    """The files of the snapshots of one dataset. Every method raises StoreError.

    Args:
        snapshots: The snapshots of the dataset.
    """

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots
        self._store, self._unchanging = snapshots.store, snapshots.files
        # The states that were read or written last, by file. A run reads its state once.
        self._states: dict[str, State] = {}

    def fetch_last(self, names: Sequence[str]) -> dict[str, bytes]:
        """Fetch the last snapshot and its state from a bucket at the same time."""
        if self._unchanging is self._store:
            return {}
        places = [
            f"{layout.SNAPSHOTS}/{name}"
            for name in names
            if name[:6] == names[-1][:6] and name.endswith((".json", "-state.parquet"))
        ]
        contents = in_threads(self._unchanging.read, places, self._store.threads)
        return dict(zip(places, contents, strict=True))

    def write_state(self, run: int, state: State) -> State:
        """Write the state that a run leaves. Return it with its file."""
        state, name = state.used(), self._snapshots.file_name(run, "state")
        lists = {_PARTS_KEY: state.parts, _LIBRARIES_KEY: state.libraries}
        metadata = {key: json.dumps(values) for key, values in lists.items()}
        table = state.table.replace_schema_metadata(metadata)
        written = write_and_hash(
            self._store, name, lambda file: pq.write_table(table, file, compression="zstd")
        )
        file = {"name": name, "content": written.content}
        return self._known(replace(state, store=self._unchanging, file=file))

    def read_state(
        self,
        snapshot: Snapshot,
        parts: Iterable[str] | None = None,
        fetched: Mapping[str, bytes] = MappingProxyType({}),
    ) -> State:
        """Return the state of a snapshot. The inputs of a part that was moved away are unknown.

        Args:
            snapshot: The snapshot.
            parts: The names of all parts, if they have been listed already.
            fetched: The content of files that have been fetched already.

        Raises:
            LedgerError: Its file is damaged.
            StoreError: Its file cannot be read, or a run removes the snapshot meanwhile.
        """
        state = self._states.get(snapshot.state["content"]) or self._read_state(snapshot, fetched)
        names = self._store.names(layout.PARTS) if parts is None else parts
        gone = state.named_parts - {*names}
        if gone and snapshot.number not in self._snapshots.numbers():
            why = f"A run has removed version {snapshot.number} meanwhile. {_KEEP}"
            raise StoreError(self._store.url, why)
        return state.without_parts(gone)

    def read_table(self, version: Snapshot) -> pa.Buffer:
        """Return the table of a version, as a Parquet file. Raises the errors of `read_file`."""
        name = self._snapshots.file_name(version.number, "table")
        file = {"name": name, "content": version.table}
        return self.read_file(file, _NO_TABLE, number=version.number)

    def read_file(
        self, file: Mapping[str, str], remedy: str, fetched: bytes | None = None, number: int = 0
    ) -> pa.Buffer:
        """Return the content of a file that a snapshot names. A large one is mapped.

        Args:
            file: Its `name`, and its `content`: a hash.
            remedy: The advice in the message about a damaged file.
            fetched: Its content, if it has been fetched already.
            number: The number of the snapshot, which a run may remove meanwhile. 0 if it cannot.

        Raises:
            LedgerError: The file is damaged.
            StoreError: It cannot be read.
        """
        try:
            data = self._store.map(file["name"]) if fetched is None else pa.py_buffer(fetched)
        except StoreError as error:
            # A snapshot is removed before its files.
            if number and number not in self._snapshots.numbers():
                remedy = f"A run has removed version {number} meanwhile. {_KEEP}"
            raise StoreError(error.path, f"{error.reason} {remedy}") from error.__cause__
        if hash_bytes(data) != file["content"]:
            raise LedgerError(
                f"{self._store.url_of(file['name'])}: is damaged. Its content does not match the "
                f"hash in the snapshot. {remedy}"
            )
        return data

    def _known(self, state: State) -> State:
        """Keep a state, and that before it."""
        last = [*self._states.values()][-1:]
        self._states = {kept.file["content"]: kept for kept in (*last, state) if kept.file}
        return state

    def _read_state(self, snapshot: Snapshot, fetched: Mapping[str, bytes]) -> State:
        data = fetched.get(snapshot.state["name"])
        content = self.read_file(snapshot.state, _NO_STATE, data, snapshot.number)
        file = pq.ParquetFile(pa.BufferReader(content))
        batches = file.iter_batches(SLICE_ROWS)
        tables = (pa.Table.from_batches([batch]).cast(STATE_SCHEMA) for batch in batches)
        keys = (_PARTS_KEY, _LIBRARIES_KEY)
        parts, libraries = (json.loads(file.schema_arrow.metadata[key]) for key in keys)
        table = collected(tables, STATE_SCHEMA)
        return self._known(State(self._unchanging, table, parts, snapshot.state, libraries))
