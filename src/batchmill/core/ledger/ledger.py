"""Read and write the ledger of a dataset: the committed outcomes, and how each run ended."""

import json
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, groupby
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchmill.core import layout
from batchmill.core.ledger.json_file import SealedRecords, read_json, read_sealed, sealed
from batchmill.core.ledger.outcomes_of_run import outcomes_in
from batchmill.core.ledger.parts import VERSION, Origin, as_part, read_part, write_hashed
from batchmill.core.ledger.proof_records import Proof
from batchmill.core.ledger.run_control import RunControl
from batchmill.core.ledger.snapshot_files import SnapshotFiles
from batchmill.core.ledger.snapshots import Snapshots
from batchmill.core.ledger.state import State
from batchmill.core.outcome import Outcome
from batchmill.core.storage import Store, if_exists, in_threads, read_once
from batchmill.errors import LedgerError, StoreError


class Ledger:
    """The ledger of the dataset in one store.

    Every method raises StoreError if the store cannot be read or written.

    Args:
        store: The store of the dataset.

    Attributes:
        store: The store of the dataset.
        unchanging: The store, for files that never change. A file of a bucket is fetched once.
        control: The messages between runs and their shards.
        snapshots: The recorded states, and the versions.
        files: The files of the snapshots: states and tables.
        proofs: The last proof of each version.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.unchanging = read_once(store)
        self.control = RunControl(store)
        self.snapshots = Snapshots(store, self.unchanging)
        self.files = SnapshotFiles(self.snapshots)
        self.proofs = SealedRecords(store, store, layout.PROOFS, Proof, "version")

    def create(self) -> bool:
        """Make the folder a dataset. If it is one already, check its version.

        Returns:
            True if it was no dataset before.

        Raises:
            LedgerError: This version of batchmill cannot read the ledger.
            StoreError: The store overwrites files, so that no lease is possible.
        """
        if self.check_version():
            return False
        data = json.dumps({"ledger": VERSION}).encode()
        # A lease needs a store that refuses to create an existing file. The second call checks it.
        self.store.create(layout.FORMAT, data)
        if self.store.create(layout.FORMAT, data):
            self.store.delete(layout.FORMAT)  # Otherwise, the next run would find a dataset.
            raise StoreError(
                self.store.url,
                "the server ignores conditional writes (If-None-Match in S3): it overwrote a file. "
                "So it cannot prevent two concurrent runs. Update the server, or choose another.",
            )
        return True

    def check_version(self) -> bool:
        """Check that this version of batchmill can read the ledger.

        Returns:
            False if there is no dataset.

        Raises:
            LedgerError: The version is unknown, or the format file is damaged.
        """
        data = if_exists(self.unchanging.read, layout.FORMAT)
        if data is None:
            return False
        try:
            version = json.loads(data)["ledger"]
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerError(
                f"{self.store.url_of(layout.FORMAT)}: is not a ledger's format file. "
                "Check that the folder is a dataset, or choose another one."
            ) from error
        if version != VERSION:
            raise LedgerError(
                f"{self.store.url}: its ledger has version {version}, but this batchmill reads "
                f"version {VERSION}. Install the batchmill that created it, or a newer one."
            )
        return True

    def changes(self) -> list[str]:
        """Return a list of file names that is different after each change of the ledger."""
        return list(chain(*self._names_in(layout.PARTS, layout.RELEASED, layout.SNAPSHOTS)))

    # Runs

    def runs(self) -> list[int]:
        """Return the numbers of the runs that were started, in order."""
        return sorted(int(name) for name in self.store.names(layout.RUNS) if name.isdigit())

    def last_known_run(self) -> int:
        """Return the last run that a file of the ledger names; 0 without one.

        A partial backup may lack the folders of runs. A new run must have a higher number than all
        recorded outcomes, because the record of the latest run wins.
        """
        names = chain(*self._names_in(layout.PARTS, layout.RELEASED, layout.SNAPSHOTS, layout.RUNS))
        matches = (re.match("[0-9]+", name.removeprefix(layout.MERGED)) for name in names)
        return max((int(match[0]) for match in matches if match), default=0)

    def run_folder(self, run: int) -> str:
        """Return the name of a run's folder in the store."""
        return f"{layout.RUNS}/{run:06d}"

    def summary_name(self, run: int) -> str:
        """Return the name of a run's summary in the store."""
        return f"{self.run_folder(run)}/{layout.SUMMARY}"

    def write_summary(self, run: int, summary: Mapping[str, Any]) -> None:
        """Record how a run ended."""
        self.store.write(self.summary_name(run), sealed(summary))

    def read_summary(self, run: int) -> dict[str, Any] | None:
        """Return how a run ended; None if it is still running, or was killed.

        Raises:
            LedgerError: The summary is damaged.
        """
        return if_exists(read_sealed, self.store, self.summary_name(run))

    # Steps

    def record_step(self, identity: str, description: Mapping[str, Any]) -> None:
        """Record the description of a step, unless it exists already.

        A later run compares its own step with it and reports the changes.

        Args:
            identity: The identity of the step.
            description: JSON values, such as the reference, the params and the digests of its code.
        """
        text = json.dumps(description, indent=2, ensure_ascii=False)
        self.store.create(f"{layout.STEPS}/{identity}.json", text.encode())

    def read_step(self, identity: str) -> dict[str, Any] | None:
        """Return the description of a step; None if it was not recorded.

        Raises:
            LedgerError: The description is damaged.
        """
        return if_exists(read_json, self.store, f"{layout.STEPS}/{identity}.json")

    # Inputs to retry

    def release(self, inputs: Sequence[str]) -> None:
        """Request a retry of inputs: their outcomes up to the last run no longer count."""
        run = self.last_known_run()
        text = json.dumps({"run": run, "inputs": list(inputs)}, ensure_ascii=False)
        self.store.write(f"{layout.RELEASED}/{run:06d}-{uuid.uuid4().hex[:12]}.json", text.encode())

    def released(self) -> dict[str, int]:
        """Return the released inputs, each with the last run whose outcome does not count.

        Raises:
            LedgerError: A file of released inputs is damaged.
        """
        released: dict[str, int] = {}
        for name in self.store.names(layout.RELEASED):
            content = read_json(self.store, f"{layout.RELEASED}/{name}", "run", "inputs")
            released |= dict.fromkeys(content["inputs"], content["run"])
        return released

    # Parts

    def commit(self, part: str, records: Sequence[tuple[Outcome, Origin]]) -> None:
        """Write one part. The outputs that it names must exist already.

        First, they are written to the disk. Otherwise, a power cut could leave a record of files
        that are empty.

        Args:
            part: The name of the part, without the hash of its content and the suffix.
            records: The outcomes, each with its origin.
        """
        names = [file.pack or file.path for outcome, _ in records for file in outcome.outputs]
        if names:
            self.store.sync(names)
        write_hashed(self.store, f"{layout.PARTS}/{part}", as_part(records))

    def part_names(self, run: int | None = None) -> list[str]:
        """Return the names of all parts, or of those that a run has committed."""
        names = [name for name in self.store.names(layout.PARTS) if name.endswith(".parquet")]
        return names if run is None else [part for part in names if self.run_of(part) == run]

    def run_of(self, part: str) -> int:
        """Return the number of the run that has committed a part; 0 for a merged part.

        Raises LedgerError for another file.
        """
        number = "0" if part.startswith(layout.MERGED) else part.partition("-")[0]
        if not number.isdecimal():
            place = self.store.url_of(f"{layout.PARTS}/{part}")
            raise LedgerError(
                f"{place}: is damaged, or is not a part of a ledger. Move it away, and run the "
                "same command again."
            )
        return int(number)

    def count_records(self, part: str) -> int:
        """Return the number of records in a part, without reading them."""
        with self.unchanging.open(f"{layout.PARTS}/{part}") as file:
            return int(pq.read_metadata(file).num_rows)

    def read_part(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Read one part.

        Args:
            name: The file name of the part.
            columns: The columns to read; all by default.

        Raises:
            LedgerError: The part is damaged or foreign. The message names it.
        """
        return read_part(self.unchanging, f"{layout.PARTS}/{name}", columns)

    # The state

    def state(self) -> State:
        """Return the state of the dataset: the last snapshot, and what later runs have committed.

        Raises:
            LedgerError: A file of the ledger is damaged.
        """
        while True:
            snapshots, listed = self._names_in(layout.SNAPSHOTS, layout.PARTS)
            parts = [name for name in listed if name.endswith(".parquet")]
            try:
                files, fetched = self.files, self.files.fetch_last(snapshots)
                last = next(self.snapshots.latest_first(snapshots), None)
                state = files.read_state(last, parts, fetched) if last else State(self.store)
                first = 1 + last.number if last else 0
                later = (name for name in parts if self.run_of(name) >= first)
                for _, names in groupby(sorted(later, key=self.run_of), self.run_of):
                    state = state.with_outcomes(outcomes_in(self.unchanging, [*names]))
                return state
            except (LedgerError, StoreError):
                # A run may have just ended, and removed what was read here.
                if snapshots == self.store.names(layout.SNAPSHOTS):
                    raise

    def records(self, columns: Iterable[str]) -> pa.Table:
        """Return what is recorded of each input now, as `State.records` does."""
        return self.state().records(columns)

    def outcomes(self, run: int) -> State:
        """Return the outcomes that a run has committed. Raises LedgerError if a part is damaged."""
        return outcomes_in(self.unchanging, self.part_names(run))

    def _names_in(self, *folders: str) -> list[list[str]]:
        """Return the names in several folders. In a bucket, they are listed at the same time."""
        return in_threads(self.store.names, folders, self.store.threads)
