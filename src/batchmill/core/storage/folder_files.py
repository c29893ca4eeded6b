"""The files of an input that is a folder, such as a series of pictures or a Zarr store."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath

from batchmill.core.storage import is_url, remote
from batchmill.core.storage.fingerprints import (
    Fingerprint,
    SeenFile,
    digest_of_files,
    file_state,
    joint_content,
)


def files_in(place: str) -> dict[str, SeenFile]:
    """Return the files below a folder by relative path, in sorted order.

    Links to folders are not followed.

    Args:
        place: The path or URL of the folder.

    Raises:
        StoreError: The store cannot be read.
        OSError: The folder cannot be read.
    """
    if is_url(place):
        found = {name: SeenFile(name, *seen) for name, seen in remote.find(place).items()}
    else:
        found = {name: file_state(f"{place}/{name}").named(name) for name in _names_below(place)}
    return dict(sorted(found.items()))


def folder_fingerprint(
    place: str, files: Mapping[str, SeenFile], content_of: Callable[[SeenFile], str]
) -> Fingerprint:
    """Return the fingerprint of a folder.

    Args:
        place: The path or URL of the folder.
        files: Its files.
        content_of: Returns the hash of a file's content.

    Raises:
        OSError: The folder cannot be read.
    """
    contents = {name: (name, content_of(file)) for name, file in files.items()}
    return folder_state(place, files)._replace(content=joint_content("", contents))


def folder_state(place: str, files: Mapping[str, SeenFile]) -> Fingerprint:
    """Return what is known of a folder without reading its files. Raises OSError.

    The size is the sum of the sizes, and the time that of the last change of a file or a folder: a
    file that is copied may have an old time.
    """
    times = [file.mtime_ns for file in files.values()]
    if not is_url(place):
        folders = {"", *map(os.path.dirname, files)}
        folders |= {str(above) for folder in folders for above in PurePath(folder).parents}
        times += [file_state(f"{place}/{folder}").mtime_ns for folder in folders]
    return Fingerprint(
        size=sum(max(file.size, 0) for file in files.values()),
        mtime_ns=max(times, default=0),
        content="",
        companions=digest_of_files(files),
    )


def _names_below(folder: str, prefix: str = "") -> Iterator[str]:
    with os.scandir(f"{folder}/{prefix}") as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _names_below(folder, f"{prefix}{entry.name}/")
            elif entry.is_file():
                yield f"{prefix}{entry.name}"
