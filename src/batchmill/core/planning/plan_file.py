"""Write and read the two files of a run's plan: its settings, and the inputs to execute.

The inputs are Arrow streams of 4,096 rows, one after another. A shard reads only the streams that
contain its rows. So its cost does not depend on the number of inputs in the plan. The settings have
the size and the hash of each stream, and their own hash. So damage is detected before it has an
effect.
"""

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import pyarrow as pa
from xxhash import xxh3_64_hexdigest

from batchmill.core.layout import PLAN, PLAN_ROWS
from batchmill.core.ledger.json_file import read_sealed, sealed
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.storage.large_tables import collected
from batchmill.errors import LedgerError, StoreError

ROWS_PER_STREAM = 4096
_REMEDY = "Run the job again, which writes a new plan."


class PlanFile:
    """The plan of one run.

    Methods that read raise LedgerError if the plan does not exist, or is damaged.

    Args:
        ledger: The ledger of the dataset.
        run: The number of the run.

    Attributes:
        ledger: The ledger of the dataset.
        settings_name: The name of the file with the settings, in the store.
        rows_name: The name of the file with the inputs, in the store.
    """

    def __init__(self, ledger: Ledger, run: int) -> None:
        self.ledger = ledger
        self.settings_name = f"{ledger.run_folder(run)}/{PLAN}"
        self.rows_name = f"{ledger.run_folder(run)}/{PLAN_ROWS}"
        self._run = run

    def write(self, settings: Mapping[str, Any], tables: Callable[[], Iterable[pa.Table]]) -> None:
        """Write the plan.

        Args:
            settings: JSON values.
            tables: Returns tables with one row per input to execute: at least one, and all but the
                last with ROWS_PER_STREAM rows. Called again if the store tries again.

        Raises:
            StoreError: The dataset cannot be written.
        """
        streams: list[tuple[int, str]] = []
        rows = 0

        def write_rows(file: BinaryIO) -> None:
            nonlocal rows
            streams.clear()
            rows = 0
            for table in tables():
                data = _stream(table)
                file.write(data)
                streams.append((len(data), xxh3_64_hexdigest(data)))
                rows += len(table)

        self.ledger.store.write_atomic(self.rows_name, write_rows)
        # The settings are written last. A plan without settings does not exist.
        content = {"settings": dict(settings), "rows": rows, "streams": streams}
        self.ledger.unchanging.write(self.settings_name, sealed(content))

    def settings(self) -> dict[str, Any]:
        """Return the settings."""
        return dict(self._content()["settings"])

    def count_rows(self) -> int:
        """Return the number of inputs."""
        return int(self._content()["rows"])

    def rows(self, start: int, stop: int) -> pa.Table:
        """Return the rows `start` up to `stop`."""
        first = start // ROWS_PER_STREAM
        tables = self.streams(first, max(first + 1, -(-stop // ROWS_PER_STREAM)))
        return pa.concat_tables(tables).slice(start - first * ROWS_PER_STREAM, stop - start)

    def names(self) -> pa.ChunkedArray:
        """Return the names of all inputs."""
        schema = pa.schema([("input", pa.string())])
        return collected((table.select(["input"]) for table in self.streams()), schema)["input"]

    def streams(self, first: int = 0, end: int | None = None) -> Iterator[pa.Table]:
        """Yield the tables of the streams `first` up to `end`. Each is read when it is needed."""
        streams = self._content()["streams"]
        place = self.ledger.store.url_of(self.rows_name)
        try:
            with self.ledger.store.open(self.rows_name) as source:
                source.seek(sum(size for size, _ in streams[:first]))
                for size, content in streams[first:end]:
                    data = source.read_buffer(size)
                    if xxh3_64_hexdigest(data) != content:
                        raise LedgerError(
                            f"{place}: is damaged. Its content does not match the hashes in "
                            f"plan.json. {_REMEDY}"
                        )
                    yield pa.ipc.open_stream(data).read_all()
        except (OSError, pa.ArrowException, StoreError) as error:
            raise self._unreadable(place, error) from error

    def damaged_file(self) -> str | None:
        """Return the name of the file that is damaged; None if there is no damage or no plan."""
        checked = self.settings_name
        if not self.ledger.store.exists(checked):
            return None
        try:
            self._content()
            checked = self.rows_name
            for _ in self.streams():
                pass
        except LedgerError:
            return checked
        return None

    def _content(self) -> dict[str, Any]:
        try:
            return read_sealed(self.ledger.unchanging, self.settings_name, _REMEDY)
        except StoreError as error:
            raise self._unreadable(self.ledger.store.url_of(self.settings_name), error) from error

    def _unreadable(self, place: str, error: Exception) -> LedgerError:
        return LedgerError(
            f"{place}: the plan of run {self._run} cannot be read ({error}). "
            "Check that this machine can read the dataset, then run the job again."
        )


def _stream(rows: pa.Table) -> bytes:
    file = io.BytesIO()
    with pa.ipc.new_stream(file, rows.schema) as writer:
        writer.write_table(rows.combine_chunks())
    return file.getvalue()
