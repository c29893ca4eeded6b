"""Read and write the files of a dataset's leases. The name of a file is the number of its lease."""

import re
import time

from batchmill.errors import LedgerError, StoreError
from batchmill.layout import LEASES
from batchmill.ledger.lease_holder import Holder, read_holder
from batchmill.storage import Store

_READS = 10
_READ_AGAIN_SECONDS = 0.1
_NUMBER = re.compile("([0-9]+)[.]json")


class LeaseFiles:
    """The files of a dataset's leases.

    Every method raises StoreError if the store cannot be read or written.

    Args:
        store: The store of the dataset.

    Attributes:
        store: The store of the dataset.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def latest(self) -> Holder | None:
        """Return the holder of the latest lease; None if there is no lease.

        Raises:
            LedgerError: There is a damaged or foreign file.
        """
        reads = 0
        while True:
            numbers = self._numbers()
            if not numbers:
                return None
            try:
                return self._read(numbers[-1])
            except StoreError:
                if numbers == self._numbers():
                    raise
            except ValueError as error:
                reads += 1
                if reads == _READS:
                    raise self._foreign(_name(numbers[-1])) from error
                time.sleep(_READ_AGAIN_SECONDS)  # Another process may be writing the file.

    def is_unchanged(self, earlier: Holder) -> bool:
        """Return whether the file of a lease still has this content."""
        try:
            return self._read(earlier.number) == earlier
        except (StoreError, ValueError):
            return False

    def create(self, holder: Holder) -> bool:
        """Write the file of a new lease. Return False if it exists."""
        return self.store.create(_name(holder.number), holder.as_json())

    def write(self, holder: Holder) -> None:
        """Replace the file of a lease."""
        self.store.write(_name(holder.number), holder.as_json())

    def delete(self, holder: Holder) -> None:
        """Delete the file of a lease."""
        self.store.delete(_name(holder.number))

    def delete_earlier(self, holder: Holder) -> None:
        """Delete the files of earlier leases, and the unfinished files up to this lease."""
        names = [f"{LEASES}/{name}" for name in self.store.names(LEASES)]
        for name in [*names, *self.store.leftovers()]:
            number = name.removeprefix(f"{LEASES}/").lstrip(".").partition(".")[0]
            is_early = number.isdigit() and int(number) <= holder.number
            if name.startswith(LEASES) and is_early and name != _name(holder.number):
                self.store.delete(name)

    def _numbers(self) -> list[int]:
        """Return the numbers of all leases, in order.

        Raises:
            LedgerError: There is another file. Its name could hide the leases of later runs.
        """
        numbers = []
        for name in self.store.names(LEASES):
            if name.startswith("."):
                continue  # A file system or a desktop may write such files.
            found = _NUMBER.fullmatch(name)
            if not found or _name(int(found[1])) != f"{LEASES}/{name}":
                raise self._foreign(f"{LEASES}/{name}")
            numbers.append(int(found[1]))
        return sorted(numbers)

    def _read(self, number: int) -> Holder:
        """Return the holder of a lease. Raises ValueError if the file is damaged."""
        return read_holder(self.store.read(_name(number)), number)

    def _foreign(self, name: str) -> LedgerError:
        return LedgerError(
            f"{self.store.url_of(name)}: is damaged, or is not a lease of this version of "
            "batchmill. If no run is active, remove the file."
        )


def _name(number: int) -> str:
    return f"{LEASES}/{number:06d}.json"
