"""The interface of a store, and what all stores share."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

import pyarrow as pa

NO_ROOM = (
    "No space left on device. Make room, and run the same command again: what is done stays done."
)
# Where outputs lie.
FILES = "files"
METADATA = "metadata.parquet"

_Result = TypeVar("_Result")
_Item = TypeVar("_Item")


class Store(Protocol):
    """Files by names, relative to a folder or URL, with `/` between their parts.

    A file is there whole, or not at all. What cannot be done raises StoreError, after a few tries
    if the reason may pass.
    """

    url: str
    """The folder's path or the URL."""
    threads: int
    """How many calls at a time make it quicker."""

    def url_of(self, name: str) -> str:
        """Return the full path or URL of `name`."""
        ...

    def exists(self, name: str) -> bool:
        """Tell whether there is a file of this name."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder in sorted order, without what is being written."""
        ...

    def files(self, folder: str) -> Iterator[str]:
        """Yield the names of all files in a folder and its folders, and of empty folders."""
        ...

    def sizes(self, names: Sequence[str]) -> Iterable[int | None]:
        """Return the size of each file in bytes, None where there is none."""
        ...

    def content_of(self, name: str) -> str:
        """Read a file and hash its content, as `fingerprints` does."""
        ...

    def read(self, name: str) -> bytes:
        """Return a file's content."""
        ...

    def open(self, name: str) -> pa.NativeFile:
        """Open a file for Arrow, which reads of it what it needs."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Write a whole file; it takes the place of an earlier one."""
        ...

    def write_atomic(self, name: str, writer: Callable[[BinaryIO], object]) -> None:
        """Have `writer` write a file, which takes the place of `name` when it is whole.

        `writer` may be called again.
        """
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Write a file that is not there yet; False if it is. Of several, one succeeds."""
        ...

    def delete(self, name: str) -> None:
        """Remove a file; one that is not there is no fault."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file, or a folder and what is in it; what is not there is no fault."""
        ...

    def put_folder(self, folder: Path, name: str, files: Sequence[str]) -> None:
        """Move the `files` of a local folder to below `name`.

        Each takes the place of an earlier one; others that are there stay.
        """
        ...

    def staging(self, attempt: str) -> AbstractContextManager[Path]:
        """Give an empty local folder for the outputs of one attempt, gone after the block."""
        ...

    def leftovers(self) -> Iterator[str]:
        """Yield the names of files that are being written, or were when their writer died.

        Only who knows that nobody is writing may take them for the latter.
        """
        ...

    @property
    def is_full(self) -> bool:
        """Whether there is no room left to write to."""
        ...


def in_threads(
    function: Callable[[_Item], _Result], items: Sequence[_Item], threads: int
) -> list[_Result]:
    """Call a function with each item, so many at a time; return the results in order."""
    if threads < 2 or len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, items))
