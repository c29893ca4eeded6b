"""Compare a dataset with its ledger: what is missing, changed, of no record, or leaks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

from batchmill.errors import StoreError
from batchmill.ledger.lease import check_free, lease
from batchmill.ledger.ledger import FOLDER, IN_FOLDER, Ledger
from batchmill.maintenance.leakage import find_duplicates, find_leaks
from batchmill.storage import FILES, METADATA, Store, in_threads

# What a dataset consists of at its top.
TABLES = (METADATA, "metadata.csv", "failures.csv")
REPORT = "report.html"
_TOP = {FOLDER, FILES, REPORT, *TABLES}


@dataclass(frozen=True)
class Difference:
    """One file that is not as the ledger says; `input` is that of which it is an output, or empty.

    A "leak" is in a table: a group in several partitions, or an input in another than its own. A
    "duplicate" is only a warning: inputs with the same content in different partitions.
    """

    kind: Literal["missing", "changed", "unreferenced", "leak", "duplicate"]
    path: str
    input: str = ""
    message: str = ""

    @property
    def is_warning(self) -> bool:
        """Whether the dataset is what its ledger says all the same."""
        return self.kind == "duplicate"


def verify(ledger: Ledger, *, hash_files: bool = False) -> Iterator[Difference]:
    """Yield the differences between a dataset's files and its ledger.

    Sizes are compared; with `hash_files`, contents too, for which every output is read.
    """
    store = ledger.store
    owners = recorded_files(ledger)
    names = list(owners)
    sizes = dict(zip(names, store.sizes(names), strict=True))

    def compare(name: str) -> Difference | None:
        owner, file = owners[name]
        return _compare(store, owner, file, sizes[name], hash_files=hash_files)

    yield from filter(None, in_threads(compare, names, store.threads))
    tables = TABLES if ledger.runs() else ()
    top = store.names("")
    for table in tables:
        if table not in top:
            yield Difference("missing", table, message="the next run writes it")
    strays = [name for name in top if name not in _TOP]
    strays += [f"{FOLDER}/{name}" for name in store.names(FOLDER) if name not in IN_FOLDER]
    for name in [*strays, *unreferenced(store, owners)]:
        yield Difference("unreferenced", name)
    for message in find_leaks(ledger):
        yield Difference("leak", METADATA, message=message)
    for message in find_duplicates(ledger):
        yield Difference("duplicate", METADATA, message=message)


def recorded_files(ledger: Ledger) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Return the outputs that the ledger names: whose each is, and its record."""
    records = ledger.records(["input", "outputs"])
    return {
        file["path"]: (owner, file)
        for owner, files in zip(
            records["input"].to_pylist(), records["outputs"].to_pylist(), strict=True
        )
        for file in files
    }


def unreferenced(store: Store, named: Mapping[str, object]) -> Iterator[str]:
    """Yield what is not `named` among the outputs; a folder in which nothing is, as a whole."""
    folders = {str(above) for name in named for above in PurePosixPath(name).parents}
    last = ""
    for name in store.files(FILES):
        if name in named or name == FILES:
            continue
        above = [*map(str, reversed(PurePosixPath(name).parents)), name]
        # Else it is empty, or a file, where the ledger has a folder.
        strays = (part for part in above if part not in folders and part not in (".", FILES))
        stray = next(strays, name)
        if stray != last:
            yield stray
        last = stray


def examine(ledger: Ledger, *, hash_files: bool = False, repair: bool = False) -> list[Difference]:
    """Return the differences between a dataset and its ledger; with `repair`, repair them, too.

    Raises LedgerError if another run is using it.
    """
    check_free(ledger)
    if not repair:
        return list(verify(ledger, hash_files=hash_files))
    with lease(ledger) as held:
        found = list(verify(ledger, hash_files=hash_files))
        repair_differences(ledger, found)
        held.clean_end = held.clean
    return found


def repair_differences(ledger: Ledger, differences: list[Difference]) -> None:
    """Let inputs with missing or changed outputs run again, and remove what is unreferenced."""
    inputs = sorted({found.input for found in differences if found.input})
    if inputs:
        ledger.release(inputs)
    for found in differences:
        if found.kind == "unreferenced":
            ledger.store.remove(found.path)


def _compare(
    store: Store, owner: str, file: Mapping[str, Any], size: int | None, *, hash_files: bool
) -> Difference | None:
    path = file["path"]
    if size is None:
        return Difference("missing", path, owner)
    if size != file["size"]:
        return Difference("changed", path, owner, f"{size:,} bytes, not {file['size']:,}")
    try:
        if hash_files and store.content_of(path) != file["content"]:
            return Difference("changed", path, owner, "another content of the same size")
    except StoreError as error:
        return Difference("changed", path, owner, f"cannot be read: {error.reason}")
    return None
