"""Read the parts of a dataset that tests compare."""

import io

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from batchmill.core.ledger.ledger import Ledger
from batchmill.core.storage import open_store
from batchmill.datasets.maintenance.verify import verify

# The entries of the ledger's folder after a first run.
AFTER_A_RUN = ["format.json", "lease", "parts", "runs", "snapshots", "steps"]


def contents(dataset):
    """Return the bytes of all outputs and metadata tables, but not `failures.csv`: it has times.

    Packs do not change the names and the bytes, but `metadata.parquet` is left out.
    """
    store = open_store(str(dataset))
    tables = [name for name in store.names("") if name.startswith("metadata.")]
    # `files` itself is listed if it is empty.
    outputs = [name for name in store.files("files") if name != "files/"]
    found = {name: store.read(name) for name in [*outputs, *tables]}
    if store.names("packs"):
        for files in Ledger(store).records(["outputs"])["outputs"].to_pylist():
            found |= {file["path"]: store.read(file["pack"] or file["path"]) for file in files}
        table = pq.read_table(pa.BufferReader(found.pop("metadata.parquet")))
        file = io.BytesIO()
        pcsv.write_csv(table.drop_columns("pack"), file)
        found["metadata.csv"] = file.getvalue()
    return found


def faults(dataset):
    """Return the differences from the ledger, byte by byte, and leftovers of a dead writer."""
    store = open_store(str(dataset))
    return [*verify(Ledger(store), hash_files=True), *store.leftovers()]


def committed(dataset):
    """Return the inputs that have a committed outcome."""
    ledger = Ledger(open_store(str(dataset)))
    return set(ledger.records(["input"])["input"].to_pylist()) if ledger.check_version() else set()
