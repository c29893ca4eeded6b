"""Read and write the ledger of a dataset: the committed outcomes, and how each run ended."""

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.errors import LedgerError, StoreError
from batchmill.layout import (
    ADOPTED,
    FORMAT,
    PARTITIONS,
    PARTS,
    PROOFS,
    RELEASED,
    RUNS,
    SUMMARY,
    UPKEEP,
)
from batchmill.ledger.json_file import (
    SealedRecords,
    StepDescriptions,
    read_json,
    read_sealed,
    sealed,
)
from batchmill.ledger.parts import (
    PART_SCHEMA,
    VERSION,
    Origin,
    as_part,
    current_records,
    read_part,
    records_schema,
    write_hashed,
)
from batchmill.ledger.proofs import Adoption, Proof
from batchmill.ledger.published_tables import read_published_record
from batchmill.ledger.run_control import RunControl
from batchmill.ledger.versions import Versions
from batchmill.outcome import Outcome
from batchmill.storage import Store, if_exists, in_threads, read_once
from batchmill.storage.large_tables import SLICE_ROWS, collected

# The records that are written to one part, which is read as a whole.
_ROWS_PER_PART = 4 * SLICE_ROWS
# About this number of records is in memory while parts are read.
_ROWS_AT_A_TIME = 4 * SLICE_ROWS


class Ledger:
    """The ledger of the dataset in one store.

    Every method raises StoreError if the store cannot be read or written.

    Args:
        store: The store of the dataset.

    Attributes:
        store: The store of the dataset.
        unchanging: The store, for files that never change. A file of a bucket is fetched once.
        control: The messages between runs and their shards.
        steps: The descriptions of the steps of the runs.
        versions: The versions that can be opened.
        adoptions: The results of earlier code that runs have kept.
        proofs: The last proof of each version.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.unchanging = read_once(store)
        self.control = RunControl(store)
        self.steps = StepDescriptions(store)
        self.versions = Versions(store)
        self.adoptions = SealedRecords(store, ADOPTED, Adoption, "run")
        self.proofs = SealedRecords(store, PROOFS, Proof, "version")

    @property
    def exists(self) -> bool:
        """Return whether the store contains a dataset."""
        return self.store.exists(FORMAT)

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
        self.store.create(FORMAT, data)
        if self.store.create(FORMAT, data):
            self.store.delete(FORMAT)  # Otherwise, the next run would find a dataset.
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
        data = if_exists(self.store.read, FORMAT)
        if data is None:
            return False
        try:
            version = json.loads(data)["ledger"]
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerError(
                f"{self.store.url_of(FORMAT)}: is not a ledger's format file. "
                "Check that the folder is a dataset, or choose another one."
            ) from error
        if version != VERSION:
            raise LedgerError(
                f"{self.store.url}: its ledger has version {version}, but this batchmill reads "
                f"version {VERSION}. Install the batchmill that created it, or a newer one."
            )
        return True

    def state(self) -> list[str]:
        """Return a list of file names that is different after each change of the ledger."""
        return list(chain(*self._names_in(PARTS, RELEASED, PARTITIONS)))

    # Runs

    def runs(self) -> list[int]:
        """Return the numbers of the runs that were started, in order."""
        return sorted(int(name) for name in self.store.names(RUNS) if name.isdigit())

    def last_known_run(self) -> int:
        """Return the last run that a file of the ledger names; 0 without one.

        A partial backup may lack the folders of runs. A new run must have a higher number than all
        recorded outcomes, because the record of the latest run wins.
        """
        with ThreadPoolExecutor(self.store.threads) as pool:
            record = pool.submit(read_published_record, self.store)
            folders = self._names_in(PARTS, RELEASED, PARTITIONS, RUNS)
            published = record.result()
        names = [name.removeprefix(UPKEEP) for name in chain(*folders)]
        recorded = [int(found[0]) for name in names if (found := re.match("[0-9]+", name))]
        return max([*recorded, published.run if published else 0])

    def last_ended_run(self) -> int | None:
        """Return the last run that ended; None without one.

        A run that was killed before it wrote the tables has published nothing.

        Raises:
            LedgerError: A summary is damaged.
        """
        runs = reversed(self.runs())
        return next((run for run in runs if self.read_summary(run) is not None), None)

    def run_folder(self, run: int) -> str:
        """Return the name of a run's folder in the store."""
        return f"{RUNS}/{run:06d}"

    def summary_name(self, run: int) -> str:
        """Return the name of a run's summary in the store."""
        return f"{self.run_folder(run)}/{SUMMARY}"

    def write_summary(self, run: int, summary: Mapping[str, Any]) -> None:
        """Record how a run ended."""
        self.store.write(self.summary_name(run), sealed(summary))

    def read_summary(self, run: int) -> dict[str, Any] | None:
        """Return how a run ended; None if it is still running, or was killed.

        Raises:
            LedgerError: The summary is damaged.
        """
        return if_exists(read_sealed, self.store, self.summary_name(run))

    # Inputs to retry

    def release(self, inputs: Sequence[str]) -> None:
        """Request a retry of inputs: their outcomes up to the last run no longer count."""
        run = self.last_known_run()
        text = json.dumps({"run": run, "inputs": list(inputs)}, ensure_ascii=False)
        self.store.write(f"{RELEASED}/{run:06d}-{uuid.uuid4().hex[:12]}.json", text.encode())

    def released(self) -> dict[str, int]:
        """Return the released inputs, each with the last run whose outcome does not count.

        Raises:
            LedgerError: A file of released inputs is damaged.
        """
        released: dict[str, int] = {}
        for name in self.store.names(RELEASED):
            content = read_json(self.store, f"{RELEASED}/{name}", "run", "inputs")
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
        write_hashed(self.store, f"{PARTS}/{part}", as_part(records))

    def rewrite_records(self, run: int, records: pa.Table) -> None:
        """Write records of earlier runs again, with changes or in fewer parts.

        A record with the same `run` and `attempt` as before replaces the earlier one. The parts of
        a run have numbers, so that the last one wins.

        Args:
            run: The number of the run that rewrites them.
            records: The records, with all columns of `PART_SCHEMA`.
        """
        begin = f"{UPKEEP}{run:06d}-"
        numbers = [re.match(rf"{begin}([0-9]{{3}})-", name) for name in self.part_names()]
        number = max((1 + int(found[1]) for found in numbers if found), default=0)
        for start in range(0, len(records) or 1, _ROWS_PER_PART):
            part = records.slice(start, _ROWS_PER_PART).select(PART_SCHEMA.names).cast(PART_SCHEMA)
            write_hashed(self.store, f"{PARTS}/{begin}{number:03d}", part)
            number += 1

    def delete_parts(self, names: Iterable[str]) -> None:
        """Delete parts whose records are in another part."""
        for name in names:
            self.store.delete(f"{PARTS}/{name}")

    def part_names(self, run: int | None = None) -> list[str]:
        """Return the names of the parts that a run, or any run, has committed."""
        names = [name for name in self.store.names(PARTS) if name.endswith(".parquet")]
        return names if run is None else _parts_of(names, run)

    def last_recorded_run(self) -> int:
        """Return the last run that committed a part; 0 without one."""
        names = [name.removeprefix(UPKEEP) for name in self.part_names()]
        return max((int(name.partition("-")[0]) for name in names), default=0)

    def read_part(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Read one part.

        Args:
            name: The file name of the part.
            columns: The columns to read; all by default.

        Raises:
            LedgerError: The part is damaged or foreign. The message names it.
        """
        return read_part(self.unchanging, f"{PARTS}/{name}", columns)

    def records(self, columns: Iterable[str] | None = None, *, run: int | None = None) -> pa.Table:
        """Return the winning record of each input.

        Args:
            columns: The columns to return; all by default.
            run: Consider the records of this run only.

        Raises:
            LedgerError: A part is damaged or foreign.
        """
        wanted = [field.name for field in PART_SCHEMA if columns is None or field.name in columns]
        return current_records(self.all_records(wanted, run=run)).select(wanted)

    def all_records(self, columns: Iterable[str], *, run: int | None = None) -> pa.Table:
        """Return all records, also those that do not win.

        Args:
            columns: The columns to return, besides those that `current_records` needs.
            run: Consider the records of this run only.

        Raises:
            LedgerError: A part is damaged or foreign.
        """
        schema = records_schema({*columns, "input", "outcome", "run", "attempt"})
        while True:
            names = self.part_names()
            try:
                return collected(self._read(names, schema, run), schema)
            except (LedgerError, StoreError):
                # A concurrent run may have just merged the parts and deleted them.
                if set(names) <= set(self.part_names()):
                    raise

    def _names_in(self, *folders: str) -> list[list[str]]:
        """Return the names in several folders. In a bucket, they are listed at the same time."""
        return in_threads(self.store.names, folders, self.store.threads)

    def _read(self, names: Sequence[str], schema: pa.Schema, run: int | None) -> Iterator[pa.Table]:
        """Yield the records of parts, or only those of a run."""
        upkeep = [name for name in names if name.startswith(UPKEEP)]
        own = [name for name in names if not name.startswith(UPKEEP)]
        own = own if run is None else _parts_of(own, run)
        read = partial(self.read_part, columns=schema.names)
        for parts, count in ((own, self.store.threads), (upkeep, 1)):
            start = 0
            while start < len(parts):
                found = in_threads(read, parts[start : start + count], self.store.threads)
                start += count
                # A merged part is large, so the first one shows how many are read at a time.
                largest = max(1, *map(len, found))
                count = max(1, min(self.store.threads, _ROWS_AT_A_TIME // largest))
                while found:
                    table = found.pop(0)
                    yield table if run is None else table.filter(pc.equal(table["run"], run))


def _parts_of(names: Iterable[str], run: int) -> list[str]:
    """Return the names of the parts that a run has committed."""
    return [name for name in names if name.startswith(f"{run:06d}-")]
