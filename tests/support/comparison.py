"""What two datasets are compared by."""

from batchmill.ledger import Ledger
from batchmill.storage import LocalStore
from batchmill.verify import verify

# What a first run leaves in the ledger's folder.
AFTER_A_RUN = ["format.json", "lease", "parts", "runs", "steps"]


def contents(dataset):
    """Every output and the metadata tables, byte for byte; `failures.csv` has times in it."""
    shown = [*(dataset / "files").rglob("*"), *dataset.glob("metadata.*")]
    return {str(p.relative_to(dataset)): p.read_bytes() for p in shown if p.is_file()}


def faults(dataset):
    """What is not as the ledger says, to the last byte, and what a dead writer has left."""
    store = LocalStore(dataset)
    return [*verify(Ledger(store), hash_files=True), *store.leftovers()]
