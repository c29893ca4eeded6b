"""What two datasets are compared by."""

from batchmill.ledger.ledger import Ledger
from batchmill.maintenance.verify import verify
from batchmill.storage import open_store

# What a first run leaves in the ledger's folder.
AFTER_A_RUN = ["format.json", "lease", "parts", "runs", "steps"]


def contents(dataset):
    """Every output and the metadata tables, byte for byte; `failures.csv` has times in it."""
    store = open_store(str(dataset))
    tables = [name for name in store.names("") if name.startswith("metadata.")]
    outputs = [name for name in store.files("files") if name != "files"]  # It may be empty.
    return {name: store.read(name) for name in [*outputs, *tables]}


def faults(dataset):
    """What is not as the ledger says, to the last byte, and what a dead writer has left."""
    store = open_store(str(dataset))
    return [*verify(Ledger(store), hash_files=True), *store.leftovers()]


def committed(dataset):
    """The inputs that have an outcome."""
    ledger = Ledger(open_store(str(dataset)))
    return set(ledger.records(["input"])["input"].to_pylist()) if ledger.exists else set()
