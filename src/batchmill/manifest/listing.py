"""A folder or bucket prefix, or a glob, as a manifest: its files in sorted order."""

import errno
import glob
import os
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath

import pandas as pd

from batchmill.manifest.dataset import read_dataset
from batchmill.manifest.source import Source, fits, numbered
from batchmill.storage import METADATA, is_url, remote
from batchmill.storage.remote import FileStat
from batchmill.storage.urls import parent

# Marks a folder as a dataset of ours, whose files are outputs and never inputs.
_DATASET_MARK = ".batchmill"


def read_folder(path: Path, pattern: str) -> Source:
    """List the files below a folder whose relative path or name fits `pattern`.

    Of a dataset, these are its outputs.
    """
    if (path / _DATASET_MARK).is_dir():
        table = path / METADATA
        content = table.read_bytes() if table.exists() else None
        return read_dataset(os.path.abspath(path), pattern, content)
    names = sorted(name for name in _files_below(path) if fits(name, pattern))
    nothing = f"no file in it fits the pattern {pattern!r}"
    return _listed(str(path), os.path.abspath(path), names, nothing)


def read_prefix(url: str, pattern: str) -> Source:
    """List the files below a URL whose relative path or name fits `pattern`, as `read_folder`."""
    url = url.rstrip("/")
    found = remote.find(url)
    inside = f"/{_DATASET_MARK}/"
    datasets = {f"/{name}".partition(inside)[0] for name in found if inside in f"/{name}"}
    if "" in datasets:
        content = remote.read(f"{url}/{METADATA}") if METADATA in found else None
        return read_dataset(url, pattern, content)
    found = _visible(found, datasets)
    seen = _unmistakable(url, {name: found[name] for name in found if fits(name, pattern)})
    nothing = f"no file in it fits the pattern {pattern!r}"
    return _listed(url, url, list(seen), nothing, seen)


def read_url_glob(pattern: str) -> Source:
    """List the files that fit a URL with `*`, `?` or `[`; names start where it varies."""
    folder = parent(pattern[: min(pattern.find(sign) % len(pattern) for sign in "*?[")])
    start = f"{folder}/"
    seen = {url.removeprefix(start): found for url, found in remote.glob(pattern).items()}
    above = {str(up).rstrip("/") for name in seen for up in PurePosixPath(f"/{name}").parents}
    tops = sorted(above)
    marks = [f"{folder}{top}/{_DATASET_MARK}/format.json" for top in tops]
    datasets = {top for top, mark in zip(tops, remote.look_at(marks), strict=True) if mark}
    seen = _visible(seen, datasets)
    seen = _unmistakable(folder, seen)
    return _listed(pattern, folder, list(seen), "no file fits it", seen)


def _unmistakable(url: str, found: Mapping[str, FileStat]) -> dict[str, FileStat]:
    """Name by its whole URL what would be taken for a path of this machine, or for another URL."""
    return {
        f"{url}/{name}" if name.startswith("/") or is_url(name) else name: seen
        for name, seen in found.items()
    }


def _visible(found: Mapping[str, FileStat], datasets: Collection[str]) -> dict[str, FileStat]:
    """Leave out what is hidden, and what lies in one of the `datasets`, named as `/a/b`."""

    def is_hidden(name: str) -> bool:
        above = [str(folder).rstrip("/") for folder in PurePosixPath(f"/{name}").parents]
        return "/." in f"/{name}" or any(folder in datasets for folder in above)

    return {name: seen for name, seen in found.items() if not is_hidden(name)}


def read_glob(pattern: str) -> Source:
    """List the files that fit a glob (`**` goes through folders); names start where it varies."""
    parts = Path(pattern).parts
    fixed = Path()
    for part in parts:
        plain = part.replace("[[]", "[").replace("[*]", "*").replace("[?]", "?")
        if glob.escape(plain) != part:
            break
        fixed /= plain
    _in_dataset.cache_clear()
    names = sorted(
        Path(name).relative_to(fixed).as_posix()
        for name in glob.iglob(pattern, recursive=True)
        if os.path.isfile(name) and not _in_dataset(os.path.dirname(os.path.abspath(name)))
    )
    return _listed(pattern, os.path.abspath(fixed), names, "no file fits it")


def is_glob(text: str) -> bool:
    """Tell whether `text` has one of the characters * ? [ that make it a pattern."""
    return glob.has_magic(text)


@cache
def _in_dataset(folder: str) -> bool:
    if os.path.isdir(os.path.join(folder, _DATASET_MARK)):
        return True
    parent = os.path.dirname(folder)
    return parent != folder and _in_dataset(parent)


def _listed(
    name: str,
    folder: str,
    names: list[str],
    nothing: str,
    seen: Mapping[str, FileStat] | None = None,
) -> Source:
    return Source(
        name=name,
        form="listing",
        seen=seen or {},
        frame=pd.DataFrame({"input": pd.Series(names, dtype=object)}),
        folder=folder,
        locate=numbered("file", len(names)),
        faults=[] if names else [f"{nothing}. Look at what is there, or give another pattern."],
    )


def _files_below(folder: Path) -> Iterator[str]:
    """Yield the relative paths of files; hidden ones and datasets of ours are passed over."""
    stack = [""]
    while stack:
        relative = stack.pop()
        try:
            with os.scandir(folder / relative) as entries:
                found = [entry for entry in entries if not entry.name.startswith(".")]
        except FileNotFoundError:
            if not relative:
                raise
            continue  # Removed or renamed since it was seen.
        for entry in found:
            name = f"{relative}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                if not os.path.isdir(os.path.join(entry.path, _DATASET_MARK)):
                    stack.append(f"{name}/")
            elif _is_file(entry):
                yield name


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Tell whether an entry is a file, or a link to one; a link to itself is none."""
    try:
        return entry.is_file()
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False
        raise
