"""Open a sample's file by its suffix, as a named kind, or with a user's function.

Files are not unpickled, because a dataset may come from an untrusted source.
"""

import importlib
import io
import json
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from batchmill.core.storage import is_url, open_store
from batchmill.core.storage.addresses import Address
from batchmill.core.storage.contained_paths import open_file
from batchmill.core.storage.scratch import scratch_folder
from batchmill.core.urls import last_part
from batchmill.errors import BatchmillError, OptionError, StoreError
from batchmill.version import install_command

# A file of an open pack is read with one system call.
_MOST_OPEN = 64
Load = Callable[[Path], Any]
# A file's path, or its content.
_File: TypeAlias = Path | io.BytesIO


def choose_load(load: Load | str | None, names: Iterable[str], dataset: str) -> Load:
    """Return the function that opens files.

    Args:
        load: The user's function, the name of a kind, or None for a choice by suffix.
        names: One file name per suffix in the dataset.
        dataset: The dataset's path or URL, for messages.

    Returns:
        A function of a path.

    Raises:
        OptionError: A suffix or a kind is unknown, or a library is missing.
    """
    if callable(load):
        return load
    if load is not None and load not in _KINDS:
        raise OptionError(
            f"load={load!r}: is not a kind of file. Give {', '.join(_KINDS)}, or a function."
        )
    kinds = {_kind_of(name, dataset) for name in names} if load is None else {load}
    for library in kinds & _LIBRARIES.keys():
        _library(library)
    return open_by_suffix if load is None else _KINDS[load]


def one_of_each_suffix(names: pa.Array) -> Iterator[str]:
    """Yield the first name with each suffix."""
    # The query of a URL follows the suffix.
    names = pc.replace_substring_regex(names, r"^(https?://[^?#]*)[?#].*", r"\1")
    while len(names):
        first = names[0].as_py()
        yield first
        names = names.filter(pc.invert(pc.ends_with(names, Path(first).suffix)))


def open_by_suffix(path: Path) -> Any:
    """Open a file by its suffix."""
    return _KINDS[_kind_of(path.name, str(path.parent))](path)


def open_content(content: bytes, place: str, load: Load) -> Any:
    """Open a file that is in a pack. A user's function gets a temporary file.

    Args:
        content: The content.
        place: The path or URL, which ends with the file's name.
        load: The function that opens it.

    Returns:
        The content.

    Raises:
        StoreError: The file is damaged.
    """
    if load is open_by_suffix:
        load = _KINDS[_kind_of(last_part(place), place)]
    if load in _KINDS.values():
        return open_fetched(io.BytesIO(content), place, load)
    with scratch_folder() as folder:
        path = folder / last_part(place)
        path.write_bytes(content)
        return open_fetched(path, place, load)


def open_fetched(path: Any, place: str, load: Load) -> Any:
    """Open a local file, or the local copy of a remote file.

    Errors of a user's `load` function are not changed, unless the file is missing.

    Args:
        path: The file's path. Or its content, as a file in memory, for a function of a kind.
        place: The path or URL, for messages.
        load: The function that opens it.

    Returns:
        The content.

    Raises:
        StoreError: The file is missing or damaged.
    """
    try:
        return load(path)
    except BatchmillError:
        raise
    except Exception as error:
        is_missing = (
            isinstance(error, FileNotFoundError) and isinstance(path, Path) and not path.exists()
        )
        is_ours = load is open_by_suffix or load in _KINDS.values()
        if not (is_ours or is_missing):
            raise
        what = "is missing" if is_missing else "cannot be opened"
        reason = str(error).strip().partition("\n")[0]
        raise StoreError(
            place,
            f"{what} ({type(error).__name__}: {reason}). Check it with "
            "batchmill verify, or set load= if the file is of another kind.",
        ) from error


def _kind_of(name: str, dataset: str) -> str:
    suffix = Path(last_part(name)).suffix.lower()
    if suffix not in _SUFFIXES:
        raise OptionError(
            f"{dataset}: cannot open {name!r}, because {suffix or 'no suffix'} is not a known "
            f"suffix. Set load= to a function of a path, or to one of {', '.join(_KINDS)}."
        )
    return _SUFFIXES[suffix]


def _library(kind: str) -> Any:
    name, extra = _LIBRARIES[kind]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise OptionError(
            f"Opening {kind} files needs {name.partition('.')[0]}: {install_command(extra)}"
        ) from error


def _tensor(path: _File) -> Any:
    # A tensor from a GPU must also open on a machine without one.
    return torch.load(path, map_location="cpu", weights_only=True)


def _array(path: _File) -> torch.Tensor:
    return _as_tensor(np.load(path, allow_pickle=False))


def _arrays(path: _File) -> dict[str, torch.Tensor]:
    with np.load(path, allow_pickle=False) as arrays:
        return {name: _as_tensor(array) for name, array in arrays.items()}


def _as_tensor(array: np.ndarray) -> torch.Tensor:
    # torch supports only the byte order of this machine.
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C", copy=False))


def _audio(path: _File) -> torch.Tensor:
    frames, _ = _library("audio").read(path, dtype="float32", always_2d=True)
    return torch.from_numpy(np.ascontiguousarray(frames.T))


def _image(path: _File) -> torch.Tensor:
    with _library("image").open(path) as image:
        if image.mode[0] in "IF":
            raise ValueError(f"its pixels ({image.mode}) have more than 8 bits: set load=")
        is_gray = image.mode in ("1", "L", "LA", "La")
        pixels = np.array(image.convert("L" if is_gray else "RGB"))
    pixels = pixels[np.newaxis] if is_gray else pixels.transpose(2, 0, 1)
    return torch.from_numpy(np.ascontiguousarray(pixels))


def _text(path: _File) -> str:
    # As in `Path.read_text`, all line ends become \n.
    return io.TextIOWrapper(io.BytesIO(_bytes(path)), encoding="utf-8").read()


def _json(path: _File) -> Any:
    return json.loads(_bytes(path))


def _bytes(path: _File) -> bytes:
    return path.read_bytes() if isinstance(path, Path) else path.getvalue()


_KINDS: dict[str, Load] = {
    "tensor": _tensor,
    "array": _array,
    "arrays": _arrays,
    "audio": _audio,
    "image": _image,
    "text": _text,
    "json": _json,
    "bytes": _bytes,
}
_SUFFIXES = {".pt": "tensor", ".npy": "array", ".npz": "arrays", ".json": "json"}
_SUFFIXES |= dict.fromkeys((".wav", ".flac", ".ogg", ".mp3"), "audio")
_SUFFIXES |= dict.fromkeys((".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp"), "image")
_SUFFIXES |= dict.fromkeys((".txt", ".md"), "text")
# The library of a kind, and the extra that installs it.
_LIBRARIES = {"audio": ("soundfile", "audio"), "image": ("PIL.Image", "images")}


class _OpenPack:
    """The descriptor of a pack. It is closed when no thread uses it any more."""

    def __init__(self, file: io.FileIO) -> None:
        self.descriptor = file.fileno()
        # Unlike `__del__`, it also works while the interpreter ends.
        weakref.finalize(self, file.close)


class PackReader:
    """Reads files from the packs of a dataset. It keeps the last packs open.

    Several threads may use it.

    Args:
        dataset: The dataset's path or URL.
    """

    def __init__(self, dataset: str) -> None:
        self._dataset = dataset
        self._store = open_store(dataset)
        self._pack = lru_cache(_MOST_OPEN)(lambda name: _OpenPack(open_file(dataset, name)))

    def read(self, place: Address) -> bytes:
        """Return the content of a file. Raises StoreError."""
        if not is_url(self._dataset):
            try:
                pack = self._pack(place.pack)
                content = os.pread(pack.descriptor, place.size, place.offset)
                if len(content) == place.size:
                    return content
            except OSError:
                pass  # The pack was written again, or the next line reports the error.
        return self._store.packed.read(place)

    def __reduce__(self) -> tuple[type["PackReader"], tuple[str]]:
        return PackReader, (self._dataset,)
