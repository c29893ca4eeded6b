"""The snapshots of a dataset, and its versions.

A snapshot is the state that a run has left, with what made it: the step, the settings, the tables.
It never changes. A version is a snapshot whose tables were published. Its files stay as long as the
snapshot does.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from batchmill.core.layout import FAILURES_CSV, KEPT, METADATA, SNAPSHOTS, TABLES
from batchmill.core.ledger.json_file import SealedRecords, read_sealed, sealed
from batchmill.core.storage import Store, if_exists, in_threads
from batchmill.errors import OptionError, StoreError

_NAME = re.compile("[A-Za-z][A-Za-z0-9._-]*")
_Read = TypeVar("_Read")


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The record of a snapshot.

    Attributes:
        number: The number of the run.
        created: When it was recorded, in seconds since 1970.
        state: The `name` of the file with its state, and the `content`: a hash.
        shown: The number of the version whose tables show this state. 0: the run published nothing,
            because its table breaks an expectation.
        step: The identity of the step.
        settings: The settings of the run, as in its plan.
        made_of: A hash of everything that the tables depend on.
        inputs: A hash of the names and contents of the inputs that are ok.
        tables: The size in bytes, the content hash and the number of rows of each table at the top
            of the dataset after the run. Empty before the first version.
        assignment: The `name` of the file with the partitions, the `content`: a hash, and the
            `partitioning`: their options. Empty without partitions.
        adoptions: The results of earlier code that are in use, as dicts of `Adoption`.
    """

    number: int
    created: float
    state: Mapping[str, str] = field(repr=False)
    shown: int
    step: str
    settings: Mapping[str, Any] = field(repr=False)
    made_of: str = field(repr=False)
    inputs: str = field(default="", repr=False)
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    assignment: Mapping[str, Any] = field(default_factory=dict, repr=False)
    adoptions: Sequence[Mapping[str, Any]] = ()

    @property
    def is_version(self) -> bool:
        """True if it is a version."""
        return self.shown == self.number

    @property
    def rows(self) -> int:
        """The number of rows of metadata.parquet."""
        return int(self.tables[METADATA]["rows"])

    @property
    def failed(self) -> int:
        """The number of rows of failures.csv: inputs that are not ok."""
        return int(self.tables[FAILURES_CSV]["rows"])

    @property
    def table(self) -> str:
        """The content hash of metadata.parquet."""
        return str(self.tables[METADATA]["content"])

    @property
    def root(self) -> str:
        """The folder or URL that the inputs are relative to."""
        return str(self.settings["root"])

    @property
    def origin(self) -> tuple[object, ...]:
        """The step and the inputs. If they differ, an equal table is another version."""
        names = ("root", "source_dataset", "source_version")
        return (self.step, *(self.settings[name] for name in names))

    @property
    def published(self) -> tuple[object, ...]:
        """The tables and what they are made of. If they are equal, a run makes no version."""
        return (self.table, self.failed, self.inputs, *self.origin)

    def matches(self, store: Store) -> bool:
        """Return whether the tables at the top of a dataset are those after this run.

        The tables are read. Raises StoreError.
        """
        contents = in_threads(lambda name: if_exists(store.content_of, name), TABLES, store.threads)
        return contents == [self.tables.get(name, {}).get("content") for name in TABLES]


class Snapshots(SealedRecords[Snapshot]):
    """The snapshots of the dataset in one store.

    Every method raises StoreError if the store cannot be read or written. Only the holder of the
    dataset's lease may change them.

    Args:
        store: The store of the dataset.
        files: The same store, for files that never change.
    """

    def __init__(self, store: Store, files: Store) -> None:
        super().__init__(store, files, SNAPSHOTS, Snapshot, "number")

    def last(self) -> Snapshot | None:
        """Return the last snapshot; None without one. Raises LedgerError if it is damaged."""
        return next(self.latest_first(), None)

    def versions(self) -> list[Snapshot]:
        """Return the versions in order. Raises LedgerError if a snapshot is damaged."""
        return [snapshot for snapshot in self.read_all() if snapshot.is_version]

    def last_version(self) -> Snapshot | None:
        """Return the last version; None without one. Raises LedgerError if it is damaged."""
        return next((snapshot for snapshot in self.latest_first() if snapshot.is_version), None)

    def read_last(self, read: Callable[[Snapshot], _Read]) -> _Read | None:
        """Read the last version with a function. Return its result, or None without a version.

        If a run publishes a version meanwhile, and removes this one, the function is called again.
        """
        while version := self.last_version():
            try:
                return read(version)
            except StoreError:
                if self.last_version() == version:
                    raise
        return None

    def with_table(self, content: str) -> Snapshot | None:
        """Return the last version whose table has a hash; None without one."""
        return next((one for one in reversed(self.versions()) if one.table == content), None)

    def file_name(self, number: int, content: Literal["table", "state", "partitions"]) -> str:
        """Return the name of a file of a snapshot in the store."""
        return f"{SNAPSHOTS}/{number:06d}-{content}.parquet"

    def remove_incomplete(self) -> None:
        """Remove files that no snapshot names, which killed runs and old snapshots have left."""
        known = {f"{number:06d}" for number in self.numbers()}
        files = [file for record in self.read_all() for file in (record.state, record.assignment)]
        named = {file.get("name") for file in files}
        for name in self.store.names(SNAPSHOTS):
            place = f"{SNAPSHOTS}/{name}"
            if name[:6] not in known and place not in named:
                self.store.delete(place)

    def names(self) -> dict[str, int]:
        """Return the names of kept versions, each with the number of its version.

        Raises:
            LedgerError: The file of the names is damaged.
        """
        content = if_exists(read_sealed, self.store, KEPT)
        return dict(content["names"]) if content else {}

    def keep(self, name: str, wanted: int | str) -> Snapshot:
        """Give a version a name, and return the version. It is kept until `drop`.

        Args:
            name: A name that is not in use: letters, digits and ._-, beginning with a letter.
            wanted: The number of the version, or a name that it already has.

        Raises:
            OptionError: The name cannot be used, or there is no such version.
        """
        version, names = self.find(wanted), self.names()
        if not _NAME.fullmatch(name):
            raise OptionError(
                f"--name {name}: a name has letters, digits and ._-, and begins with a letter."
            )
        if names.get(name, version.number) != version.number:
            raise OptionError(
                f"--name {name}: is the name of version {names[name]}. Choose another one, or "
                f"remove it first: --drop {name}"
            )
        self._write_names(names | {name: version.number})
        return version

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

    def find(self, wanted: int | str) -> Snapshot:
        """Return a version by its number or name.

        Raises:
            OptionError: There is no such version.
        """
        names, versions = self.names(), self.versions()
        text = str(wanted)
        number = int(text) if text.isdecimal() else names.get(text)
        for version in versions:
            if version.number == number:
                return version
        numbers = ", ".join(str(version.number) for version in versions) or "none"
        raise OptionError(
            f"{self.store.url}: version {wanted}: there is no such version. Versions: {numbers}. "
            f"{_listed(names)}"
        )

    def _write_names(self, names: Mapping[str, int]) -> None:
        self.store.write(KEPT, sealed({"names": dict(names)}))


def _listed(names: Mapping[str, int]) -> str:
    return f"Names: {', '.join(sorted(names)) or 'none'}."
