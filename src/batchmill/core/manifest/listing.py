"""List the files of a folder, a bucket prefix or a glob as a manifest, in sorted order."""

import errno
import glob
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path, PurePosixPath

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.layout import FORMAT, LEDGER_FOLDER
from batchmill.core.manifest.dataset_manifest import read_dataset
from batchmill.core.manifest.source import Source, fits, numbered
from batchmill.core.storage import is_url, remote
from batchmill.core.storage.large_tables import collected_texts, select
from batchmill.core.storage.remote import FOUND
from batchmill.core.urls import escape_name, parent


def read_folder(path: Path, pattern: str, *, folders: bool) -> Source:
    """List the files below a folder, or the folders in it.

    Args:
        path: The folder. If it is a dataset, its outputs are listed.
        pattern: The pattern that a file's relative path or name must match.
        folders: True to list folders. Hidden folders and datasets are left out.

    Returns:
        One row per file or folder.

    Raises:
        OSError: The folder cannot be read.
    """
    if (path / LEDGER_FOLDER).is_dir():
        return read_dataset(os.path.abspath(path), pattern)
    paths = _folders_in(path) if folders else _files_below(path)
    names = (name for name in paths if fits(name, pattern))
    nothing = f"no {'folder' if folders else 'file'} in it matches {pattern!r}"
    return _listed(str(path), os.path.abspath(path), names, nothing)


def read_prefix(url: str, pattern: str, objects: pa.Table, *, folders: bool) -> Source:
    """List the files below a URL, or the folders directly below it.

    Args:
        url: The bucket prefix. If it is a dataset, its outputs are listed.
        pattern: The pattern that a file's relative path or name must match.
        objects: The result of `find_table`.
        folders: True to list folders. Hidden folders and datasets are left out.

    Returns:
        One row per file, with what the store says about it, or one per folder.

    Raises:
        StoreError: The store cannot be read.
    """
    url = url.rstrip("/")
    datasets = _datasets_in(objects["name"])
    if "" in datasets:
        return read_dataset(url, pattern)
    if not folders:
        nothing = f"no file in it matches {pattern!r}"
        return _listed_objects(url, url, objects, pattern, datasets, nothing)
    within = objects["name"].filter(pc.match_substring(objects["name"], "/"))
    tops = pc.unique(pc.replace_substring_regex(within, "/.*", "")).to_pylist()
    names = [
        name
        for name in sorted(tops)
        if name[:1] not in ("", ".") and name not in datasets and fits(name, pattern)
    ]
    return _listed(url, url, names, f"no folder below it matches {pattern!r}")


def read_url_glob(url: str, pattern: str) -> Source:
    """List the files that match a URL with `*`, `?` or `[`.

    Args:
        url: The URL.
        pattern: The pattern that a file's relative path or name must match, too.

    Returns:
        One row per file. Names are relative to the folder before the first wildcard.

    Raises:
        StoreError: The store cannot be read.
    """
    folder = parent(url[: min(url.find(sign) % len(url) for sign in "*?[")])
    start = f"{folder}/"
    seen = {url.removeprefix(start): stat for url, stat in remote.glob(url).items()}
    above = {str(up).strip("/") for name in seen for up in PurePosixPath(f"/{name}").parents}
    tops = sorted(above)
    marks = [f"{start}{top}/{FORMAT}" if top else f"{start}{FORMAT}" for top in tops]
    datasets = {top for top, mark in zip(tops, remote.stat_many(marks), strict=True) if mark}
    rows = [{"name": name, **stat._asdict()} for name, stat in seen.items()]
    objects = pa.Table.from_pylist(rows, FOUND)
    return _listed_objects(url, folder, objects, pattern, datasets, "no file matches it")


def _datasets_in(names: pa.ChunkedArray) -> set[str]:
    """Return the folders of datasets, such as `a/b`; "" if the listed folder is one itself."""
    inside = pc.match_substring_regex(names, rf"(^|/){re.escape(LEDGER_FOLDER)}/")
    return {
        f"/{name}".partition(f"/{LEDGER_FOLDER}/")[0][1:]
        for name in names.filter(inside).to_pylist()
    }


def _listed_objects(
    name: str, url: str, objects: pa.Table, pattern: str, datasets: Collection[str], nothing: str
) -> Source:
    """Return a listing of objects, without hidden ones and those in the folders of datasets."""
    is_hidden = pc.match_substring_regex(objects["name"], r"(^|/)\.")
    for folder in datasets:
        inside = pc.starts_with(objects["name"], f"{folder}/" if folder else "")
        is_hidden = pc.or_(is_hidden, inside)
    if pattern != "*":
        fitting = (fits(name.as_py(), pattern) for name in objects["name"])
        is_hidden = pc.or_(is_hidden, pc.invert(pa.array(fitting, pa.bool_())))
    objects = select(objects, pc.invert(is_hidden))
    # The full URL is the name of an object whose name looks like a local path or another URL.
    names = objects["name"]
    may_be = pc.or_(pc.starts_with(names, "/"), pc.match_substring(names, "://"))
    if pc.any(may_be).as_py():
        names = (
            f"{url}/{name}" if name.startswith("/") or is_url(name) else name
            for name in names.to_pylist()
        )
    return _listed(name, url, names, nothing, objects)


def read_glob(path: str, pattern: str, *, folders: bool = False) -> Source:
    """List the files that match a glob. `**` matches any number of folders.

    Args:
        path: The glob.
        pattern: The pattern that a file's relative path or name must match, too.
        folders: True to list the folders that match it.

    Returns:
        One row per file. Names are relative to the folder before the first wildcard.
    """
    fixed, rest = Path(), list(Path(path).parts)
    while len(rest) > 1:
        plain = rest[0].replace("[[]", "[").replace("[*]", "*").replace("[?]", "?")
        if glob.escape(plain) != rest[0]:
            break
        fixed /= plain
        del rest[0]
    _in_dataset.cache_clear()
    found = (
        name.relative_to(fixed).as_posix()
        for name in _matching(fixed, rest)
        if (os.path.isdir(name) if folders else os.path.isfile(name) or not os.path.exists(name))
        and not _in_dataset(os.path.abspath(name if folders else name.parent))
    )
    # With several `**`, a file is found more than once.
    names = sorted({name for name in found if fits(name, pattern)})
    nothing = f"no {'folder' if folders else 'file'} matches it"
    return _listed(path, os.path.abspath(fixed), names, nothing)


def _matching(folder: Path, parts: Sequence[str]) -> Iterator[Path]:
    """Yield the paths below a folder that match a pattern. `**` does not follow links to folders.

    As in a shell, a name that begins with a dot matches only a part that begins with a dot.
    """
    # Otherwise `**` would be only folders at the end, and an error inside a name.
    *above, last = [part if part == "**" else re.sub(r"\*+", "*", part) for part in parts]
    last = re.sub(r"^(\w)", r"[\1]", last)  # A plain name would not match a link to nothing.
    # Each part with a dot matches one name, so any further one has matched a wildcard.
    hidden = sum(part.startswith(".") for part in parts)
    for path in folder.glob("/".join([*above, *(["**", "*"] if last == "**" else [last])])):
        names = path.relative_to(folder).parts
        if sum(name.startswith(".") for name in names) == hidden:
            yield path


def is_glob(text: str) -> bool:
    """Return whether `text` has one of the wildcards * ? [."""
    return glob.has_magic(text)


@cache
def _in_dataset(folder: str) -> bool:
    if os.path.isdir(os.path.join(folder, LEDGER_FOLDER)):
        return True
    parent = os.path.dirname(folder)
    return parent != folder and _in_dataset(parent)


def _listed(
    name: str, folder: str, names: Iterable[str], nothing: str, files: pa.Table | None = None
) -> Source:
    if isinstance(names, pa.ChunkedArray):
        column = names
    else:
        # A file whose name is not UTF-8 is an input whose outcome is `missing`.
        column = collected_texts(name if name.isascii() else escape_name(name) for name in names)
    return Source(
        name=name,
        form="listing",
        files=files,
        frame=pd.DataFrame({"input": pd.Series(column, dtype=pd.ArrowDtype(pa.string()))}),
        folder=folder,
        locate=numbered("file", len(column)),
        faults=[] if len(column) else [f"{nothing}. Check the path, or give another pattern."],
    )


def _folders_in(folder: Path) -> list[str]:
    """Return the names of folders in sorted order, without hidden folders and datasets."""
    with os.scandir(folder) as entries:
        return sorted(
            entry.name
            for entry in entries
            if entry.is_dir()
            and not entry.name.startswith(".")
            and not os.path.isdir(os.path.join(entry.path, LEDGER_FOLDER))
        )


def _files_below(folder: Path) -> Iterator[str]:
    """Yield the relative paths of files in sorted order, without hidden files and datasets."""
    stack = [""]
    while stack:
        relative = stack.pop()
        if relative and not relative.endswith("/"):
            yield relative
            continue
        try:
            with os.scandir(folder / relative) as entries:
                visible = [entry for entry in entries if not entry.name.startswith(".")]
        except FileNotFoundError:
            if not relative:
                raise
            continue  # The folder was removed or renamed after it was listed.
        names = []
        for entry in visible:
            name = f"{relative}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                if not os.path.isdir(os.path.join(entry.path, LEDGER_FOLDER)):
                    names.append(f"{name}/")
            elif _is_input(entry):
                names.append(name)
        # With the slash, a folder has the place of its files.
        stack += sorted(names, reverse=True)


def _is_input(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a file, a link to a file, or a broken link.

    A broken link is an input whose outcome is `missing`, so that it is not lost silently.
    """
    try:
        return entry.is_file() or (entry.is_symlink() and not os.path.exists(entry.path))
    except OSError as error:
        if error.errno == errno.ELOOP:
            return True
        raise
