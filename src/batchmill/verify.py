"""Compare a dataset with its ledger: what is missing, changed, or of no record."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from batchmill.fingerprints import content_of
from batchmill.ledger import FILES, FOLDER, Ledger
from batchmill.outputs import remove_folder

# What a dataset consists of, at its top and in its ledger.
TABLES = ("metadata.parquet", "metadata.csv", "failures.csv")
_TOP = {FOLDER, FILES, *TABLES}
_IN_LEDGER = {
    *("format.json", "parts", "runs", "released", "steps", "staging", "lease", "manifest.parquet")
}


@dataclass(frozen=True)
class Difference:
    """One file that is not as the ledger says; `input` is empty for one of no record."""

    kind: Literal["missing", "changed", "unreferenced"]
    path: str
    input: str = ""
    message: str = ""


def verify(ledger: Ledger, *, hash_files: bool = False) -> Iterator[Difference]:
    """Yield the differences between a dataset's files and its ledger.

    Sizes are compared; with `hash_files`, contents too, for which every output is read.
    """
    root = ledger.store.root
    records = ledger.records(["input", "outputs"])
    named: set[str] = set()
    for name, files in zip(
        records["input"].to_pylist(), records["outputs"].to_pylist(), strict=True
    ):
        for file in files:
            named.add(file["path"])
            difference = _compare(root, name, file, hash_files=hash_files)
            if difference:
                yield difference
    for table in TABLES:
        if ledger.runs() and not (root / table).is_file():
            yield Difference("missing", table, message="the next run writes it")
    yield from _unreferenced(root, named)


def repair(ledger: Ledger, differences: list[Difference]) -> None:
    """Let inputs with missing or changed outputs run again, and remove what is unreferenced."""
    inputs = sorted({found.input for found in differences if found.input})
    if inputs:
        ledger.release(inputs)
    for found in differences:
        if found.kind == "unreferenced":
            path = ledger.store.path(found.path)
            if path.is_dir() and not path.is_symlink():
                remove_folder(path)
            else:
                path.unlink(missing_ok=True)


def _compare(
    root: Path, name: str, file: dict[str, str | int], *, hash_files: bool
) -> Difference | None:
    path = str(file["path"])
    place = root / path
    try:
        size = os.stat(place).st_size
        if size != file["size"]:
            message = f"{size:,} bytes, not {file['size']:,}"
            return Difference("changed", path, name, message)
        if hash_files and content_of(str(place)) != file["content"]:
            return Difference("changed", path, name, "another content of the same size")
    except FileNotFoundError:
        return Difference("missing", path, name)
    except OSError as error:
        return Difference("changed", path, name, f"cannot be read: {error.strerror}")
    return None


def _unreferenced(root: Path, named: set[str]) -> Iterator[Difference]:
    for name in sorted(os.listdir(root)):
        if name not in _TOP:
            yield Difference("unreferenced", name)
    for name in sorted(os.listdir(root / FOLDER)):
        if name not in _IN_LEDGER:
            yield Difference("unreferenced", f"{FOLDER}/{name}")
    folders = {os.path.dirname(path) for path in named}
    folders |= {above for path in folders for above in map(str, Path(path).parents)}
    yield from _below(root, FILES, named, folders)


def _below(root: Path, folder: str, named: set[str], folders: set[str]) -> Iterator[Difference]:
    """Yield what is in a folder and of no record; a folder of which nothing is, as a whole."""
    try:
        entries = sorted(os.scandir(root / folder), key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    for entry in entries:
        path = f"{folder}/{entry.name}"
        if path in folders and entry.is_dir(follow_symlinks=False):
            yield from _below(root, path, named, folders)
        elif path not in named:
            yield Difference("unreferenced", path)
