"""A store in a prefix of a bucket, or behind another URL that fsspec opens."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from batchmill.core.layout import FILES, PACKS, TOP_NAMES
from batchmill.core.storage import remote, transfer
from batchmill.core.storage.addresses import PackedFiles
from batchmill.core.storage.large_tables import disk_folder
from batchmill.core.storage.scratch import scratch_folder
from batchmill.core.storage.store import Store, Upload, in_threads, no_check, parts_of
from batchmill.errors import StoreError

logger = logging.getLogger(__name__)

# A PUT replaces an object atomically, and can be made to fail if the object exists.
WRITABLE = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az")

# The memory for the contents of files that never change.
_KEPT_BYTES = 32 * 2**20


def unwritable(url: str) -> str:
    """Return why a dataset cannot be at a URL; empty if it can. Raises StoreError."""
    scheme = url.partition("://")[0]
    if scheme == "memory":
        return "exists in one process only, but a run has several. Name a folder or a bucket."
    if scheme not in WRITABLE:
        return f"{scheme}:// is read-only; datasets go to a folder or to {', '.join(WRITABLE)}."
    remote.check_url(url)
    return ""


class ObjectStore(Store):
    """A store whose names are keys below one URL. Nothing is renamed, because a PUT is atomic."""

    threads = remote.THREADS

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.before_change: Callable[[], None] = no_check
        self.packed = PackedFiles(self)
        # The names in folders, during a block of `alone`.
        self._listed: dict[str, list[str]] | None = None
        # A new object for each change in a folder.
        self._changes: dict[str, object] = {}

    def url_of(self, name: str) -> str:
        """Return the URL of `name`."""
        # The full check takes longer than everything else here.
        if ".." in name:
            parts_of(self.url, name)
        return f"{self.url}/{name}" if name else self.url

    def exists(self, name: str) -> bool:
        """Return whether the name exists."""
        return remote.stat(self.url_of(name)) is not None

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder in sorted order."""
        listed, change = self._listed, self._changes.get(folder)
        names = listed.get(folder) if listed else None
        if names is None:
            names = remote.names(self.url_of(folder))
            # Another thread may have changed the folder since the store has listed it.
            if listed is not None and change is self._changes.get(folder):
                listed[folder] = names
        return list(names)

    @contextmanager
    def keeping_listings(self) -> Iterator[None]:
        """List each folder only once during the block, unless this store changes it."""
        self._listed = {}
        try:
            yield
        finally:
            self._listed = None

    @contextmanager
    def _changing(self, name: str) -> Iterator[None]:
        """Check the lease, and change a file in the block. Then its folders are listed again."""
        self.before_change()
        try:
            yield
        finally:
            folder = name
            while folder:
                folder = folder.rpartition("/")[0]
                self._changes[folder] = object()
                if self._listed:
                    self._listed.pop(folder, None)

    def files(self, folder: str) -> Iterator[str]:
        """Yield the names of all files below a folder."""
        for name in remote.find(self.url_of(folder)):
            yield f"{folder}/{name}"

    def file_sizes(self, names: Sequence[str]) -> Iterable[int | None]:
        """Return the size of each file outside packs in bytes, None if there is no file."""
        if len(names) > remote.FEW and all(name.startswith(f"{FILES}/") for name in names):
            files = remote.find(self.url_of(FILES))
            seen = [files.get(name.removeprefix(f"{FILES}/")) for name in names]
        else:
            seen = remote.stat_many([self.url_of(name) for name in names])
        return [None if file is None else file.size for file in seen]

    def _content_of_file(self, name: str) -> str:
        return remote.content_of(self.url_of(name))

    def _read_file(self, name: str) -> bytes:
        return remote.read(self.url_of(name))

    def _open_file(self, name: str) -> pa.NativeFile:
        return remote.open_for_arrow(self.url_of(name))

    def map(self, name: str) -> pa.Buffer:
        """Return the content of a file, which may exceed the memory: it is mapped from a disk."""
        with scratch_folder(base=Path(disk_folder())) as folder:
            remote.fetch(self.url_of(name), str(folder / "file"))
            return pa.memory_map(str(folder / "file")).read_buffer()

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        """Return a part of a file. It is shorter if the file ends before."""
        return remote.read_range(self.url_of(name), offset, size)

    def write(self, name: str, data: bytes) -> None:
        """Write a whole file, and replace an earlier one."""
        with self._changing(name):
            remote.write(self.url_of(name), data)

    def write_atomic(self, name: str, writer: Callable[[BinaryIO], object]) -> None:
        """Write a temporary file with `writer`, then replace `name` with it."""
        with self._changing(name), scratch_folder() as folder:
            path = folder / "file"
            try:
                with path.open("xb") as file:
                    writer(file)
            except OSError as error:
                raise StoreError(str(path), f"{error.strerror}.", general=True) from error
            remote.upload(str(path), self.url_of(name))

    def copy(self, source: str, target: str) -> None:
        """Copy a file within the store, and replace an earlier one."""
        with self._changing(target):
            remote.copy(self.url_of(source), self.url_of(target))

    def create(self, name: str, data: bytes) -> bool:
        """Write a file that does not exist yet. Return False if it exists."""
        with self._changing(name):
            return remote.create(self.url_of(name), data)

    def delete(self, name: str) -> None:
        """Remove a file. Ignore a name that does not exist."""
        with self._changing(name):
            remote.delete(self.url_of(name))

    def remove(self, name: str) -> None:
        """Remove a file, or a folder and its content. Ignore a name that does not exist."""
        with self._changing(name):
            inside = [self.url_of(found) for found in self.files(name)]
            in_threads(remote.delete, [*inside, self.url_of(name)], self.threads)

    def put_folder(self, folder: Path, name: str, contents: Mapping[str, str]) -> list[Upload]:
        """Return a function for each file of a folder. It uploads the file to the folder `name`."""
        self.before_change()
        return [
            partial(transfer.upload, f"{folder}/{file}", self.url_of(f"{name}/{file}"))
            for file in contents
        ]

    def staging(self, attempt: str) -> AbstractContextManager[Path]:  # noqa: ARG002
        """Create an empty folder on this machine, for the block."""
        return scratch_folder()

    def pack_folder(self, staging: Path) -> Path:
        """Return the folder where packs are written: a folder on this machine."""
        folder = staging / PACKS
        folder.mkdir(exist_ok=True)
        return folder

    def abort_uploads(self) -> None:
        """Remove the parts of uploads whose writers died."""
        self.before_change()
        try:
            remote.abort_uploads(self.url, TOP_NAMES)
        except StoreError as error:
            # The parts only cost money, and a lifecycle rule of the bucket can remove them.
            logger.warning("The parts of incomplete uploads stay in the bucket. %s", error)


class ReadOnce(ObjectStore):
    """A view of an object store that keeps the content of the files that it has read or written.

    It is only for files that never change, such as the parts of a ledger.
    """

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store.url)
        self._store = store
        self._contents: dict[str, bytes] = {}
        self._free = _KEPT_BYTES

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        content = self._contents.get(name)
        if content is None:
            content = super().read(name)
            self._keep(name, content)
        return content

    def write(self, name: str, data: bytes) -> None:
        """Write a whole file."""
        self._store.write(name, data)
        self._keep(name, data)

    def _keep(self, name: str, content: bytes) -> None:
        if len(content) <= self._free:
            self._free -= len(content)
            self._contents[name] = content

    def open(self, name: str) -> pa.NativeFile:
        """Open a file for Arrow."""
        return pa.BufferReader(self.read(name))
