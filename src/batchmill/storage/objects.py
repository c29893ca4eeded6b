"""A bucket's prefix, or whatever else fsspec opens by URL."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from batchmill.errors import StoreError
from batchmill.storage import remote
from batchmill.storage.scratch import scratch_folder
from batchmill.storage.store import FILES, in_threads

# One PUT replaces an object at once, and can be made to fail where there is one.
WRITABLE = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az")


def unwritable(url: str) -> str:
    """Say why no dataset can be at a URL; empty if one can. Raises StoreError."""
    scheme = url.partition("://")[0]
    if scheme == "memory":
        return "lives in one process only, and a run has many. Name a folder or a bucket."
    if scheme not in WRITABLE:
        return f"datasets go to a folder or to {', '.join(WRITABLE)}; {scheme}:// is read only."
    remote.check_url(url)
    remote.check_bucket(url)
    return ""


class ObjectStore:
    """A store whose names are keys below one URL. Nothing is renamed: a PUT is all or nothing."""

    threads = remote.THREADS

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def url_of(self, name: str) -> str:
        """Return the URL of `name`."""
        return f"{self.url}/{name}" if name else self.url

    def exists(self, name: str) -> bool:
        """Tell whether there is a file of this name."""
        return remote.stat(self.url_of(name)) is not None

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder in sorted order."""
        return remote.names(self.url_of(folder))

    def files(self, folder: str) -> Iterator[str]:
        """Yield the names of all files in a folder and its folders."""
        for name in remote.find(self.url_of(folder)):
            yield f"{folder}/{name}"

    def sizes(self, names: Sequence[str]) -> Iterable[int | None]:
        """Return the size of each file in bytes, None where there is none."""
        if len(names) > remote.FEW and all(name.startswith(f"{FILES}/") for name in names):
            found = remote.find(self.url_of(FILES))
            seen = [found.get(name.removeprefix(f"{FILES}/")) for name in names]
        else:
            seen = remote.stat_many([self.url_of(name) for name in names])
        return [None if file is None else file.size for file in seen]

    def content_of(self, name: str) -> str:
        """Read a file and hash its content."""
        return remote.content_of(self.url_of(name))

    def read(self, name: str) -> bytes:
        """Return a file's content."""
        return remote.read(self.url_of(name))

    def open(self, name: str) -> pa.NativeFile:
        """Open a file for Arrow, which reads of it what it needs."""
        return remote.open_for_arrow(self.url_of(name))

    def write(self, name: str, data: bytes) -> None:
        """Write a whole file; it takes the place of an earlier one."""
        remote.write(self.url_of(name), data)

    def write_atomic(self, name: str, writer: Callable[[BinaryIO], object]) -> None:
        """Have `writer` write a file, which takes the place of `name` when it is whole."""
        with scratch_folder() as folder:
            path = folder / "file"
            try:
                with path.open("xb") as file:
                    writer(file)
            except OSError as error:
                raise StoreError(str(path), f"{error.strerror}.", general=True) from error
            remote.upload(str(path), self.url_of(name))

    def create(self, name: str, data: bytes) -> bool:
        """Write a file that is not there yet; False if it is. Of several, one succeeds."""
        return remote.create(self.url_of(name), data)

    def delete(self, name: str) -> None:
        """Remove a file; one that is not there is no fault."""
        remote.delete(self.url_of(name))

    def remove(self, name: str) -> None:
        """Remove a file, or a folder and what is in it; what is not there is no fault."""
        inside = [self.url_of(found) for found in self.files(name)]
        in_threads(remote.delete, [*inside, self.url_of(name)], self.threads)

    def put_folder(self, folder: Path, name: str, files: Sequence[str]) -> None:
        """Upload the `files` of a folder to below `name`."""
        for file in files:
            remote.upload(f"{folder}/{file}", self.url_of(f"{name}/{file}"))

    def staging(self, attempt: str) -> AbstractContextManager[Path]:  # noqa: ARG002
        """Give an empty folder of this machine."""
        return scratch_folder()

    def leftovers(self) -> Iterator[str]:
        """Yield nothing: what has been uploaded in part has no name yet."""
        yield from ()

    @property
    def is_full(self) -> bool:
        """Whether there is no room left to write to; buckets have no bounds."""
        return False
