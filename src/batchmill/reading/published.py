"""The table that a dataset has published, and the place that its inputs are relative to."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from batchmill.errors import OptionError, StoreError
from batchmill.ledger.open import last_run, open_ledger
from batchmill.planning.run_spec import read_work
from batchmill.storage import METADATA, Store, is_url, remote
from batchmill.storage.fingerprints import hash_file
from batchmill.storage.scratch import scratch_folder


class Published(NamedTuple):
    """Some columns of the table, the names of all of them, and the hash of the file."""

    table: pa.Table
    columns: list[str]
    content: str


def read_published(
    dataset: str, columns: Collection[str] | None = None, content: str = ""
) -> Published:
    """Read `columns` of a dataset's table, those that it has; None: all.

    Raises OptionError if there is no dataset, or no table yet, or, if a `content` is given, the
    table is not the one that had this hash.
    """
    with _opened(open_ledger(dataset).store, dataset) as file:
        found = hash_file(file)
        if content and found != content:
            raise OptionError(
                f"{dataset}: its table has changed since it was opened, so that sample 0 may be "
                "another. Open it again."
            )
        file.seek(0)
        try:
            # pandas' note in the schema would make an index of a manifest's columns.
            parquet = pq.ParquetFile(file)
            names = parquet.schema_arrow.names
            chosen = [name for name in names if columns is None or name in columns]
            table = parquet.read(columns=chosen).replace_schema_metadata(None)
        except (OSError, pa.ArrowException) as error:
            raise StoreError(
                f"{dataset}/{METADATA}", f"cannot be read ({error}). Run the same command again."
            ) from error
    return Published(table, names, found)


def input_root(dataset: str) -> str:
    """Return the folder or URL that a dataset's inputs are relative to, by its last run."""
    ledger = open_ledger(dataset)
    return read_work(ledger, last_run(ledger, dataset)).root


@contextmanager
def _opened(store: Store, dataset: str) -> Iterator[BinaryIO]:
    """Open the table; a remote one is fetched, for it is read twice: for its hash, and for it."""
    place = store.url_of(METADATA)
    if not store.exists(METADATA):
        raise OptionError(
            f"{dataset}: has no {METADATA} yet, which a run writes at its end. Let batchmill run "
            "come to its end there."
        )
    with scratch_folder() as folder:
        path = str(folder / METADATA) if is_url(place) else place
        if is_url(place):
            remote.fetch(place, path)
        try:
            with open(path, "rb") as file:
                yield file
        except OSError as error:
            raise StoreError(place, f"{error.strerror}.") from error
