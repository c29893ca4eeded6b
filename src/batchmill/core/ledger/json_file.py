"""Read and write the small JSON files of a ledger."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import xxhash

from batchmill.core.storage import Store, if_exists
from batchmill.errors import LedgerError

_Record = TypeVar("_Record")
_MOVE_AWAY = "Move it away, and run the same command again."


def read_json(store: Store, name: str, *keys: str) -> dict[str, Any]:
    """Read a JSON object.

    Args:
        store: The store of the dataset.
        name: The name of the file in the store.
        *keys: The keys that the object must have.

    Returns:
        The object.

    Raises:
        LedgerError: The file does not contain a JSON object with these keys.
        StoreError: The file cannot be read.
    """
    try:
        content: dict[str, Any] = json.loads(store.read(name))
        if isinstance(content, dict) and set(keys) <= content.keys():
            return content
    except ValueError:
        pass
    raise _damage(store, name, _MOVE_AWAY)


def sealed(content: Mapping[str, Any]) -> bytes:
    """Return a JSON object with one more key, `hash`, that `read_sealed` checks.

    Args:
        content: JSON values. Other keys than text become text.
    """
    content = json.loads(json.dumps(content))
    seal = xxhash.xxh3_64_hexdigest(json.dumps(content).encode())
    return json.dumps({**content, "hash": seal}, indent=2).encode()


def read_sealed(store: Store, name: str, remedy: str = _MOVE_AWAY) -> dict[str, Any]:
    """Read a JSON object that `sealed` returned.

    Args:
        store: The store of the dataset.
        name: The name of the file in the store.
        remedy: The advice in the message about a damaged file.

    Returns:
        The object, without its hash.

    Raises:
        LedgerError: The file differs from what was written.
        StoreError: The file cannot be read.
    """
    data = store.read(name)
    try:
        content: dict[str, Any] = json.loads(data)
        del content["hash"]
        # Compare the whole text: a damaged byte is detected even if the values are the same.
        if sealed(content) == data:
            return content
    except (ValueError, KeyError, TypeError):
        pass
    raise _damage(store, name, remedy)


@dataclass(frozen=True)
class SealedRecords(Generic[_Record]):
    """Small records in a folder of the ledger, one for each run or version.

    Every method raises StoreError if the store cannot be read or written.

    Attributes:
        store: The store of the dataset.
        files: The store that reads and writes the records: `store`, or the one for files that never
            change, if no record is replaced.
        folder: The name of the folder.
        kind: The dataclass of the records.
        key: The attribute of a record that is the number of its run or version.
    """

    store: Store
    files: Store
    folder: str
    kind: type[_Record]
    key: str

    def record(self, record: _Record) -> None:
        """Write a record. It replaces the earlier one with the same number."""
        self.files.write(self._name(getattr(record, self.key)), sealed(vars(record)))

    def numbers(self, names: Sequence[str] | None = None) -> list[int]:
        """Return the numbers of all records in order, also if a record is damaged.

        Args:
            names: The names in the folder, if it has been listed already.
        """
        names = self.store.names(self.folder) if names is None else names
        stems = (name.removesuffix(".json") for name in names)
        return sorted(int(name) for name in stems if name.isdecimal())

    def latest_first(self, names: Sequence[str] | None = None) -> Iterator[_Record]:
        """Yield the records from the last one on, without those that are removed meanwhile.

        `names` is that of `numbers`. Raises LedgerError if a record is damaged.
        """
        for number in reversed(self.numbers(names)):
            content = if_exists(read_sealed, self.files, self._name(number))
            if content is not None:
                yield self.kind(**content)

    def read_all(self) -> list[_Record]:
        """Return the records in the order of their numbers. Raises LedgerError."""
        return [*self.latest_first()][::-1]

    def remove(self, number: int) -> None:
        """Remove a record, if it exists."""
        self.store.delete(self._name(number))

    def _name(self, number: int) -> str:
        return f"{self.folder}/{number:06d}.json"


def _damage(store: Store, name: str, remedy: str) -> LedgerError:
    return LedgerError(
        f"{store.url_of(name)}: is damaged, or is not a file of this ledger. {remedy}"
    )
