"""A folder, or a glob, as a manifest: its files in sorted order."""

import glob
import os
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pandas as pd

from batchmill.manifest.source import Source, numbered

# Marks a folder as a dataset of ours, whose files are outputs and never inputs.
_DATASET_MARK = ".batchmill"


def read_folder(path: Path, pattern: str) -> Source:
    """List the files below a folder whose relative path or name fits `pattern`."""
    names = sorted(
        name
        for name in _files_below(path)
        if fnmatch(name, pattern) or fnmatch(name.rsplit("/", 1)[-1], pattern)
    )
    return _listed(str(path), path, names, f"no file in it fits the pattern {pattern!r}")


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
    return _listed(pattern, fixed, names, "no file fits it")


def is_glob(text: str) -> bool:
    """Tell whether `text` has one of the characters * ? [ that make it a pattern."""
    return glob.has_magic(text)


@cache
def _in_dataset(folder: str) -> bool:
    if os.path.isdir(os.path.join(folder, _DATASET_MARK)):
        return True
    parent = os.path.dirname(folder)
    return parent != folder and _in_dataset(parent)


def _listed(name: str, folder: Path, names: list[str], nothing: str) -> Source:
    return Source(
        name=name,
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
        with os.scandir(folder / relative) as entries:
            found = [entry for entry in entries if not entry.name.startswith(".")]
        for entry in found:
            name = f"{relative}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                if not os.path.isdir(os.path.join(entry.path, _DATASET_MARK)):
                    stack.append(f"{name}/")
            elif entry.is_file():
                yield name
