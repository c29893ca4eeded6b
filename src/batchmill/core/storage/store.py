"""The interface of a store, and functions that all stores use."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO, ParamSpec, Protocol, TypeVar

import pyarrow as pa

from batchmill.core.storage.addresses import PackedFiles, parse_address
from batchmill.core.storage.fingerprints import HashingFile, hash_bytes
from batchmill.errors import StoreError

NO_ROOM = (
    "No space left on device. Free some space, and run the same command again. It resumes the run."
)

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_Item = TypeVar("_Item")


# Uploads one file.
Upload = Callable[[], object]


class Store(Protocol):
    """Files with names relative to a folder or URL. The parts of a name are separated by `/`.

    A file exists completely or not at all. `sizes`, `content_of`, `read` and `open` also take the
    address of a file in a pack. A method that fails raises StoreError. If the cause may
    pass, the method retries a few times first. It also raises StoreError for a name that points
    outside the store or contains a link.
    """

    url: str
    """The path of the folder, or the URL."""
    threads: int
    """The number of threads to use for many calls."""
    packed: PackedFiles
    """The files in packs."""
    before_change: Callable[[], None]
    """Called before each change. The holder of the lease checks here that it still holds it."""

    def url_of(self, name: str) -> str:
        """Return the full path or URL of `name`."""

    def exists(self, name: str) -> bool:
        """Return whether the name exists."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder in sorted order, without files that are being written."""

    def keeping_listings(self) -> AbstractContextManager[None]:
        """List each folder of a bucket only once during the block, unless this store changes it.

        No other process may change the dataset. In a folder, listings are fast, and not kept.
        """
        return nullcontext()

    def links(self, folder: str) -> list[str]:  # noqa: ARG002
        """Return the names in a folder that are links, in sorted order. A bucket has no links."""
        return []

    def files(self, folder: str) -> Iterator[str]:
        """Yield the names of all files below a folder, and of empty folders, with a slash."""

    def sizes(self, names: Sequence[str]) -> Iterable[int | None]:
        """Return the size of each file in bytes, None if there is no file."""
        places = [parse_address(name) for name in names]
        packed = iter(self.packed.sizes(filter(None, places)))
        loose = [name for name, place in zip(names, places, strict=True) if not place]
        others = iter(self.file_sizes(loose))
        return (next(packed) if place else next(others) for place in places)

    def content_of(self, name: str) -> str:
        """Read a file and hash its content, as in `fingerprints`."""
        place = parse_address(name)
        return hash_bytes(self.packed.read(place)) if place else self._content_of_file(name)

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        place = parse_address(name)
        return self.packed.read(place) if place else self._read_file(name)

    def open(self, name: str) -> pa.NativeFile:
        """Open a file for Arrow, which reads only the parts that it needs."""
        place = parse_address(name)
        return pa.BufferReader(self.packed.read(place)) if place else self._open_file(name)

    def map(self, name: str) -> pa.Buffer:
        """Return the content of a file, which may exceed the memory: it is mapped from a disk."""
        return self.open(name).read_buffer()

    def file_sizes(self, names: Sequence[str]) -> Iterable[int | None]:
        """Return what `sizes` returns, for files outside packs."""

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        """Return a part of a file. It is shorter if the file ends before."""

    def _content_of_file(self, name: str) -> str:
        """Return what `content_of` returns, for a file outside packs."""

    def _read_file(self, name: str) -> bytes:
        """Return the content of a file outside packs."""

    def _open_file(self, name: str) -> pa.NativeFile:
        """Open a file outside packs, as `open` does."""

    def write(self, name: str, data: bytes) -> None:
        """Write a whole file, and replace an earlier one."""
        self.write_atomic(name, lambda file: file.write(data))

    def write_atomic(self, name: str, writer: Callable[[BinaryIO], object]) -> None:
        """Write a temporary file with `writer`, then replace `name` with it.

        A retry calls `writer` again.
        """

    def copy(self, source: str, target: str) -> None:
        """Copy a file within the store, and replace an earlier one."""

    def create(self, name: str, data: bytes) -> bool:
        """Write a file that does not exist yet. Return False if it exists.

        If several processes call this for one name, one of them succeeds.
        """

    def delete(self, name: str) -> None:
        """Remove a file. Ignore a name that does not exist."""

    def remove(self, name: str) -> None:
        """Remove a file, or a folder and its content. Ignore a name that does not exist."""

    def put_folder(self, folder: Path, name: str, contents: Mapping[str, str]) -> list[Upload]:
        """Move the files of a local folder into the folder `name`, or begin to.

        The name must depend on the contents. So another attempt that uses it has the same files,
        and no file is ever replaced by another content.

        Args:
            folder: The local folder.
            name: The folder in the store.
            contents: The content hash of each file.

        Returns:
            The uploads that are left to do: one for each file in a bucket, none in a folder.
        """

    def sync(self, names: Sequence[str]) -> None:  # noqa: ARG002
        """Wait until these files are on the disk of the store, so that they survive a power cut.

        An upload to a bucket is on the disks of the bucket when it ends.
        """
        return

    def staging(self, attempt: str) -> AbstractContextManager[Path]:
        """Create an empty local folder for the outputs of one attempt, for the block."""

    def pack_folder(self, staging: Path) -> Path:
        """Return the local folder where packs are written.

        Args:
            staging: The folder of an attempt, from `staging`.
        """

    def cut(self, name: str, size: int) -> None:  # noqa: ARG002
        """Cut a pack after `size` bytes if it is longer. In a bucket, no pack is too long."""
        return

    def leftovers(self) -> Iterator[str]:
        """Yield the names of files that are being written, or whose writer died.

        Only the holder of the lease can be sure that their writers died. In a bucket, an incomplete
        upload has no name.
        """
        return iter(())

    def abort_uploads(self) -> None:
        """Remove the parts of uploads whose writers died. Only the holder of the lease may.

        A folder has no uploads.
        """
        return

    @property
    def is_full(self) -> bool:
        """Return whether the store has no free space. A bucket has no limit."""
        return False


def no_check() -> None:
    """Do nothing before a change. This is the default."""


def if_exists(
    read: Callable[_Given, _Result], *args: _Given.args, **kwargs: _Given.kwargs
) -> _Result | None:
    """Call a function that reads one file. Return None if the file does not exist.

    In a bucket, this saves the request that `Store.exists` sends.
    """
    try:
        return read(*args, **kwargs)
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            return None
        raise


def write_and_hash(store: Store, name: str, writer: Callable[[HashingFile], object]) -> HashingFile:
    """Write a file as `Store.write_atomic` does. Return its size and the hash of its content."""
    attempts: list[HashingFile] = []

    def write(file: BinaryIO) -> None:
        attempts.append(HashingFile(file))
        writer(attempts[-1])

    store.write_atomic(name, write)
    return attempts[-1]


def parts_of(root: str, name: str) -> list[str]:
    """Return the parts of a name; none for the root itself.

    Args:
        root: The folder or URL that the name is relative to.
        name: A name with `/` between its parts.

    Raises:
        StoreError: The name could point outside the root.
    """
    parts = name.split("/") if name else []
    if not {"", ".", ".."}.isdisjoint(parts) or "\0" in name:
        raise StoreError(
            root,
            f"the name {name!r} points outside this dataset. Nothing was changed. Remove the file "
            "that contains this name, or do not use the dataset.",
            general=True,
        )
    return parts


def ahead_in_threads(
    function: Callable[[_Item], _Result], items: Iterable[_Item], threads: int
) -> Iterator[_Result]:
    """Call a function with each item, and yield the results in order.

    Threads work on up to `threads` items ahead. Raises the errors of the function.
    """
    begun: deque[Future[_Result]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for item in items:
            begun.append(pool.submit(function, item))
            if len(begun) > threads:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()


def in_threads(
    function: Callable[[_Item], _Result], items: Sequence[_Item], threads: int
) -> list[_Result]:
    """Call a function with each item, in at most `threads` threads. Return the results in order."""
    if threads < 2 or len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, items))
