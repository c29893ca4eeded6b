"""The versions of a dataset: the tables that its runs published, and the names of kept versions.

A version is the table of one run, and the records that won when this run ended. A file of the
dataset never changes, so a version stays readable until its files are removed.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.errors import LedgerError, OptionError
from batchmill.layout import KEPT, VERSIONS
from batchmill.ledger.json_file import read_sealed, sealed
from batchmill.ledger.parts import current_records
from batchmill.storage import Store, if_exists, read_once
from batchmill.storage.large_tables import select

_NAME = re.compile("[A-Za-z][A-Za-z0-9._-]*")


@dataclass(frozen=True, kw_only=True)
class Version:
    """One version of a dataset.

    Attributes:
        number: The number of the run that published it.
        created: When it was published, in seconds since 1970.
        rows: The number of rows of its table.
        failed: The number of inputs that are not ok.
        step: The identity of the step.
        table: The content hash of its table.
    """

    number: int
    created: float
    rows: int
    failed: int
    step: str
    table: str


class Versions:
    """The versions of the dataset in one store.

    Every method raises StoreError if the store cannot be read or written. Only the holder of the
    dataset's lease may change versions.

    Args:
        store: The store of the dataset.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._unchanging = read_once(store)

    def read_all(self) -> list[Version]:
        """Return all versions in order. A damaged description is left out."""
        found = []
        for name in self._store.names(VERSIONS):
            if name.endswith(".json"):
                with suppress(LedgerError, TypeError):
                    found.append(Version(**read_sealed(self._unchanging, f"{VERSIONS}/{name}")))
        return sorted(found, key=lambda version: version.number)

    def numbers(self) -> list[int]:
        """Return the numbers of all versions in order, also if their description is damaged."""
        names = [name.removesuffix(".json") for name in self._store.names(VERSIONS)]
        return [int(name) for name in names if name.isdecimal()]

    def table_name(self, number: int) -> str:
        """Return the name of a version's table in the store."""
        return f"{VERSIONS}/{number:06d}.parquet"

    def add(self, version: Version, table: str) -> None:
        """Record a new version.

        Args:
            version: The version.
            table: The name of its table in the store, which is copied.
        """
        self._store.copy(table, self.table_name(version.number))
        self._unchanging.write(self._name(version.number), sealed(asdict(version)))

    def remove(self, number: int) -> None:
        """Remove a version, but not its files."""
        self._store.delete(self._name(number))
        self._store.delete(self.table_name(number))

    def remove_incomplete(self) -> None:
        """Remove the tables without a description, which killed runs have left."""
        names = self._store.names(VERSIONS)
        for name in names:
            if name.endswith(".parquet") and f"{name.removesuffix('.parquet')}.json" not in names:
                self._store.delete(f"{VERSIONS}/{name}")

    def names(self) -> dict[str, int]:
        """Return the names of kept versions, each with the number of its version.

        Raises:
            LedgerError: The file of the names is damaged.
        """
        found = if_exists(read_sealed, self._store, KEPT)
        return dict(found["names"]) if found else {}

    def keep(self, name: str, number: int) -> None:
        """Give a version a name. It is kept until `drop`.

        Args:
            name: A name that is not in use: letters, digits and ._-, beginning with a letter.
            number: The number of the version.

        Raises:
            OptionError: The name cannot be used, or there is no such version.
        """
        names = self.names()
        if not _NAME.fullmatch(name):
            raise OptionError(
                f"--name {name}: a name has letters, digits and ._-, and begins with a letter."
            )
        if names.get(name, number) != number:
            raise OptionError(
                f"--name {name}: is the name of version {names[name]}. Choose another one, or "
                f"remove it first: --drop {name}"
            )
        self.find(number)
        self._write_names(names | {name: number})

    def drop(self, name: str) -> None:
        """Remove the name of a version. The next run may remove the version.

        Raises:
            OptionError: There is no such name.
        """
        names = self.names()
        if name not in names:
            raise OptionError(f"--drop {name}: no version has this name. {_listed(names)}")
        del names[name]
        self._write_names(names)

    def find(self, wanted: int | str) -> Version:
        """Return a version by its number or name.

        Raises:
            OptionError: There is no such version.
        """
        names, versions = self.names(), self.read_all()
        text = str(wanted)
        number = int(text) if text.isdecimal() else names.get(text)
        for version in versions:
            if version.number == number:
                return version
        numbers = ", ".join(str(version.number) for version in versions) or "none"
        raise OptionError(
            f"{self._store.url}: version {wanted}: there is no such version. Versions: {numbers}. "
            f"{_listed(names)}"
        )

    def _write_names(self, names: Mapping[str, int]) -> None:
        self._store.write(KEPT, sealed({"names": dict(names)}))

    def _name(self, number: int) -> str:
        return f"{VERSIONS}/{number:06d}.json"


def records_of(records: pa.Table, number: int) -> pa.Table:
    """Return the records of a version: those that won when its run ended.

    Args:
        records: All records, with the columns that `current_records` needs.
        number: The number of the version.
    """
    return current_records(select(records, pc.less_equal(records["run"], number)))


def _listed(names: Mapping[str, int]) -> str:
    return f"Names: {', '.join(sorted(names)) or 'none'}."
