"""The index of an export, and the list of the files that it has begun to write."""

from collections.abc import Set
from typing import Any

from batchmill.errors import OptionError
from batchmill.exporting.shard import FOLDER
from batchmill.ledger.json_file import read_sealed, sealed
from batchmill.storage import Store, if_exists, open_store
from batchmill.urls import absolute

INDEX = f"{FOLDER}/index.json"
# The names of all shards that an export has begun to write. A killed export may have left any.
BEGUN = f"{FOLDER}/begun.json"
VERSION = 1
# The advice about a damaged index.
REMEDY = "Delete the export, and export again."


def read_index(out: str) -> dict[str, Any]:
    """Return the index of a complete export. Raises OptionError and StoreError."""
    store = open_store(absolute(out))
    if not store.exists(INDEX):
        what = "is not complete" if store.exists(BEGUN) else "is not an export"
        raise OptionError(f"{out}: {what}. Run batchmill export, then this command again.")
    return read_sealed(store, INDEX, REMEDY)


def earlier_files(store: Store) -> set[str]:
    """Return the names of the files that earlier exports wrote, or began to write."""
    found: set[str] = set()
    for name in (INDEX, BEGUN):
        content = if_exists(read_sealed, store, name, REMEDY)
        if content:
            found.update(shard["name"] for shard in content["shards"])
    return found


def begin(store: Store, to: str, names: Set[str]) -> None:
    """Record the files that will be written, and remove the index."""
    shards = [{"name": name} for name in sorted(names)]
    store.write(BEGUN, sealed({"version": VERSION, "to": to, "shards": shards}))
    store.delete(INDEX)


def remove_leftovers(store: Store, names: Set[str]) -> None:
    """Remove the temporary files that a killed export left beside files of these names."""
    for folder in {"", *(name.rpartition("/")[0] for name in names)}:
        inside = open_store(store.url_of(folder))
        for name in inside.leftovers():
            inside.delete(name)
