"""Read the parts of a dataset that tests compare."""

from batchmill.ledger.ledger import Ledger
from batchmill.maintenance.verify import verify
from batchmill.storage import open_store

# The entries of the ledger's folder after a first run.
AFTER_A_RUN = ["format.json", "lease", "parts", "published.json", "runs", "steps", "versions"]


def contents(dataset):
    """Return the bytes of all outputs and metadata tables, but not `failures.csv`: it has times."""
    store = open_store(str(dataset))
    tables = [name for name in store.names("") if name.startswith("metadata.")]
    # `files` itself is listed if it is empty.
    outputs = [name for name in store.files("files") if name != "files"]
    return {name: store.read(name) for name in [*outputs, *tables]}


def faults(dataset):
    """Return the differences from the ledger, byte by byte, and leftovers of a dead writer."""
    store = open_store(str(dataset))
    return [*verify(Ledger(store), hash_files=True), *store.leftovers()]


def committed(dataset):
    """Return the inputs that have a committed outcome."""
    ledger = Ledger(open_store(str(dataset)))
    return set(ledger.records(["input"])["input"].to_pylist()) if ledger.exists else set()
