"""Look up the sizes, times and ETags of inputs and companions: files or folders, paths or URLs.

Also find files that changed so recently that another process may still be writing them.
"""

import math
import os
import stat
import time
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.storage import in_threads, is_url, remote
from batchmill.core.storage.fingerprints import Fingerprint, recordable
from batchmill.core.storage.folder_files import files_in, folder_state
from batchmill.core.storage.large_tables import SLICE_ROWS, Column, collected
from batchmill.core.storage.remote import FOUND, FileStat
from batchmill.core.urls import join
from batchmill.errors import OptionError

MISSING_SIZE = -1
_NANOSECONDS = 1_000_000_000
_NO_FOLDER = Fingerprint(MISSING_SIZE, 0, "")

# The columns of the tables of files: those of a listing, and the time of the last change.
FILES = FOUND.set(0, pa.field("input", pa.string())).append(pa.field("ctime_ns", pa.int64()))


def stat_files(
    names: Column, root: str, faults: dict[int, str], seen: Mapping[str, FileStat]
) -> pa.Table:
    """Return files with their sizes, times and ETags, as in `Manifest.inputs`.

    A missing file is not a fault, because it may exist when the input is executed. The ETag of a
    file in a pack is its address.
    """
    is_remote = np.full(len(names), is_url(root))
    is_remote = np.asarray(pc.match_substring(names, "://").fill_null(False)) | is_remote
    stats = collected(_stat_local(names, root, faults, is_remote), FILES)
    if not (seen or is_remote.any()):
        return stats
    # All URLs are looked up in one call, because the folders of many are listed, each once.
    known: dict[int, FileStat | None] = {
        start + row: seen[name]
        for start in range(0, len(names) if seen else 0, SLICE_ROWS)
        for row, name in enumerate(names.slice(start, SLICE_ROWS).to_pylist())
        if name in seen
    }
    places = {
        index: join(root, names[index].as_py())
        for index in np.flatnonzero(is_remote).tolist()
        if names[index].is_valid and index not in faults and index not in known
    }
    urls = {index: place for index, place in places.items() if is_url(place)}
    known |= dict(zip(urls, _stat_urls(urls, faults), strict=True))
    sizes, times = (stats[name].to_numpy().copy() for name in ("size", "mtime_ns"))
    etags: list[str | None] = [None] * len(names)
    for index, what in known.items():
        if what is not None:
            sizes[index], times[index], etags[index] = what
    return pa.table([stats["input"], sizes, times, etags, stats["ctime_ns"]], schema=FILES)


def stat_folders(names: pa.StringArray, root: str, faults: dict[int, str]) -> pa.Table:
    """Return folders as `stat_files` returns files, with `companions`: digests of their files."""
    places = [join(root, name) if name is not None else "" for name in names.to_pylist()]
    listings = in_threads(_look_into, places, remote.THREADS)
    for index, state in enumerate(listings):
        if isinstance(state, str):
            faults.setdefault(index, f"{names[index].as_py()!r} {state}")
    states = [_NO_FOLDER if isinstance(state, str) else state for state in listings]
    schema = FILES.append(pa.field("companions", pa.string()))
    columns = ([getattr(state, name) for state in states] for name in schema.names[1:])
    return pa.table([names, *columns], schema=schema)


def _look_into(place: str) -> Fingerprint | str:
    """Return the state of a folder, or why it cannot be an input."""
    if not place:
        return _NO_FOLDER
    if not is_url(place) and os.path.isfile(place):
        return "is a file. Name a folder, or drop --input-kind folder."
    try:
        files = files_in(place)
        # A bucket has no empty folders.
        return folder_state(place, files) if files or not is_url(place) else _NO_FOLDER
    except FileNotFoundError:
        return _NO_FOLDER
    except OSError as error:
        return f"cannot be read: {error.strerror}."


def _stat_local(
    names: Column, root: str, faults: dict[int, str], is_remote: np.ndarray
) -> Iterator[pa.Table]:
    """Yield the sizes and both times of local files; MISSING_SIZE for missing and remote files."""
    prefix = root if root.endswith("/") else f"{root}/"
    # The loop runs once per input, so lookups are moved out of it.
    read_status = os.stat
    # Only some names are Python objects at a time. It limits the memory.
    for start in range(0, len(names), SLICE_ROWS):
        part = names.slice(start, SLICE_ROWS)
        chunk = part.to_pylist()
        sizes, times, changes = [MISSING_SIZE] * len(chunk), [0] * len(chunk), [0] * len(chunk)
        for index in np.flatnonzero(is_remote[start : start + SLICE_ROWS]).tolist():
            if chunk[index] is not None and is_url(join(root, chunk[index])):
                chunk[index] = None
        for row, name in enumerate(chunk):
            if name is None:
                continue
            try:
                status = read_status(name if name[0] == "/" else prefix + name)
            except OSError:
                continue
            sizes[row], times[row] = status.st_size, status.st_mtime_ns
            changes[row] = status.st_ctime_ns
            if not stat.S_ISREG(status.st_mode):
                fault = "is not a regular file. Name a file."
                if stat.S_ISDIR(status.st_mode):
                    fault = "is a folder. Name a file, or add --input-kind folder."
                faults.setdefault(start + row, f"{name!r} {fault}")
        etags = pa.nulls(len(chunk), pa.string())
        changed = pa.array(_as_array(changes), mask=np.array(sizes) == MISSING_SIZE)
        yield pa.table([part, sizes, _as_array(times), etags, changed], schema=FILES)


def _as_array(times: list[int]) -> np.ndarray:
    try:
        return np.array(times, np.int64)
    except OverflowError:
        return np.array([recordable(time) for time in times], np.int64)


def _stat_urls(places: Mapping[int, str], faults: dict[int, str]) -> list[FileStat | None]:
    """Look up files by URL. An unusable URL scheme is a fault of each of its inputs."""
    unusable: dict[str, str] = {}
    for index, place in places.items():
        scheme = place.partition("://")[0]
        if scheme not in unusable:
            unusable[scheme] = remote.why_unusable(place)
        if unusable[scheme]:
            faults[index] = f"{place!r}: {unusable[scheme]}"
    if any(unusable.values()):
        return [None] * len(places)
    return remote.stat_many(list(places.values()), remote.stat_if_allowed)


def check_min_age(seconds: float) -> None:
    """Check the minimum age of files.

    Args:
        seconds: The value of the option --min-age.

    Raises:
        OptionError: The value is negative or not finite.
    """
    if not 0 <= seconds < math.inf:
        raise OptionError(f"--min-age {seconds}: expected a number of seconds, 0 or more.")


def is_too_young(inputs: pa.Table, seconds: float) -> pa.ChunkedArray:
    """Return which files of a listing are too young to be read.

    Args:
        inputs: The inputs, with `size` and `mtime_ns`.
        seconds: The minimum distance between a file's time and now, in either direction.

    Returns:
        A mask. A file whose time is further in the future is old enough, because a clock was wrong.
        A file that disappeared is too young, because another process is moving it.
    """
    distance = pc.abs(pc.subtract(inputs["mtime_ns"], time.time_ns()))
    is_near = pc.less(distance, int(seconds * _NANOSECONDS))
    return pc.or_(is_near, pc.equal(inputs["size"], MISSING_SIZE))
