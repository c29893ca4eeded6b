"""Moves the files that a step wrote from its private folder into the dataset."""

import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

import xxhash

from batchmill.core.layout import FILES, OUTPUT_COLUMN
from batchmill.core.outcome import WrittenFile
from batchmill.core.storage.fingerprints import fingerprint
from batchmill.core.storage.store import Upload
from batchmill.runs.inputs.result_rows import File, Row
from batchmill.runs.inputs.staging import StagingArea, empty

# The digits of the hash in a folder's name. With 48 bits, two different outputs of one input
# practically never have the same name.
_DIGITS = 12
_COPY_BYTES = 2**20


class OutputError(Exception):
    """The files that a step wrote differ from the files that its rows name, or are not allowed."""


def place_outputs(
    staged: Path | None, rows: Sequence[Row], staging: StagingArea, input_id: str
) -> tuple[tuple[WrittenFile, ...], Sequence[Upload]]:
    """Move a step's files into the dataset, and put their new paths into the rows.

    Args:
        staged: The folder that the step wrote to; None if the step writes no files.
        rows: The step's rows. The names of files are changed in place. A row that names a file, but
            has no `output`, gets its first file as `output`.
        staging: The folders of this attempt, and the store. With packs, files are appended to a
            pack, unless they are larger than a pack.
        input_id: The input's id.

    Returns:
        The files, with their paths in the dataset, and the uploads that are left to do. In a
        remote dataset, the files are only named.

    Raises:
        OutputError: The rows and the folder do not have the same files, or a file is not allowed.
        StoreError: The files cannot be written to the dataset.
    """
    if staged:
        _check_folder(staged)
    named = _named(rows, staged)
    if not staged and not named:
        return (), ()
    names = sorted(_written(staged)) if staged else []
    _compare(set(named), set(names))
    # The files are hashed now, while they are in the page cache.
    written = {name: fingerprint(f"{staged}/{name}") for name in names}
    contents = {name: seen.content for name, seen in written.items()}
    folder = f"{FILES}/{folder_name(input_id, contents)}"
    packed: dict[str, str] = {}
    uploads: Sequence[Upload] = ()
    if written and staged:
        packs = staging.packs
        if packs and sum(seen.size for seen in written.values()) <= packs.limit:
            places = packs.add(staged, {name: f"{folder}/{name}" for name in names})
            packed = {name: place.named(name) for name, place in places.items()}
            empty(staging, staged, names)
        else:
            uploads = staging.store.put_folder(staged, folder, contents)
    for name, naming in named.items():
        for row, key in naming:
            row[key] = f"{folder}/{name}"
    files = tuple(
        WrittenFile(f"{folder}/{name}", seen.size, seen.content, packed.get(name))
        for name, seen in written.items()
    )
    return files, uploads


def folder_name(input_id: str, contents: Mapping[str, str]) -> str:
    """Return the name of the folder for an input's files, which depends on their contents.

    So a file never changes: other outputs of the same input have another folder.

    Args:
        input_id: The input's id.
        contents: The content hash of each file, by name.

    >>> folder_name("a-ae53ac10e51459de", {"clip.wav": "xxh128:0a"})
    'a-ae53ac10e51459de.7cd8e667d143'
    """
    text = "".join(f"{name}\0{content}\n" for name, content in contents.items())
    return f"{input_id}.{xxhash.xxh3_64_hexdigest(text.encode())[:_DIGITS]}"


def _check_folder(staged: Path) -> None:
    """Raise OutputError if the step replaced its folder. Make the folder writable again."""
    mode = os.lstat(staged).st_mode if os.path.lexists(staged) else 0
    if not stat.S_ISDIR(mode):
        raise OutputError("the step removed or replaced the folder `out`. Only write into it.")
    _make_writable(staged, mode)


def _make_writable(folder: str | Path, mode: int) -> None:
    """Let this user change a folder. Otherwise no later run could remove its files."""
    if mode & stat.S_IRWXU != stat.S_IRWXU:
        os.chmod(folder, stat.S_IMODE(mode) | stat.S_IRWXU)


def _named(rows: Iterable[Row], staged: Path | None) -> dict[str, list[tuple[Row, str]]]:
    """Return the rows and keys that name each file. Raises OutputError for a bad name."""
    named: dict[str, list[tuple[Row, str]]] = {}
    for number, row in enumerate(rows):
        files = {key: value.path for key, value in row.items() if type(value) is File}
        if row.get(OUTPUT_COLUMN) is not None:
            files.setdefault(OUTPUT_COLUMN, row[OUTPUT_COLUMN])
        elif files:
            files[OUTPUT_COLUMN] = next(iter(files.values()))
        for key, value in files.items():
            name = _relative_name(value, f"row {number}", key, staged)
            named.setdefault(name, []).append((row, key))
    return named


def _relative_name(value: object, row: str, key: str, staged: Path | None) -> str:
    """Return the name of a file, relative to the step's folder. Raises OutputError."""
    if isinstance(value, str) and _is_plain(value):  # This is a tenth of the time.
        return value
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    path = PurePosixPath(text) if isinstance(text, str) else None
    if path is None or not path.parts:
        raise OutputError(f"{row} has {key}={value!r}; expected a file's name, relative to `out`.")
    if staged and path.is_relative_to(staged):
        path = path.relative_to(staged)
    if path.is_absolute() or ".." in path.parts:
        raise OutputError(
            f"{row} names {str(path)!r}, which is not below its output folder. "
            "Write to `out`, and name the file relative to it."
        )
    return str(path)


def _is_plain(name: str) -> bool:
    """Return whether a text is the name of a file in a folder, and nothing else."""
    return "/" not in name and "\0" not in name and name not in ("", ".", "..")


def _written(folder: Path, prefix: str = "") -> Iterator[str]:
    """Yield the relative names of files below a folder. Raises OutputError for other entries."""
    with os.scandir(folder) as entries:
        for entry in entries:
            name = f"{prefix}{entry.name}"
            # A byte that is not UTF-8 is a surrogate in the name.
            if name.encode(errors="ignore").decode() != name:
                raise OutputError(
                    f"the step wrote {name!r}, whose name is not UTF-8. Rename the file."
                )
            if entry.is_symlink():
                raise OutputError(
                    f"the step wrote {name!r}, a symbolic link. It may point outside the dataset. "
                    "Write a regular file."
                )
            if entry.is_dir():
                _make_writable(entry.path, entry.stat().st_mode)
                yield from _written(Path(entry.path), f"{name}/")
                with suppress(OSError):  # It has files.
                    os.rmdir(entry.path)
            elif entry.is_file():
                if entry.stat().st_nlink > 1:
                    _detach(entry.path)
                yield name
            else:
                raise OutputError(
                    f"the step wrote {name!r}, which is not a regular file. Write a regular file."
                )


def _detach(path: str) -> None:
    """Replace a hard link by a copy. Otherwise, a change of the other file would change it, too."""
    with open(path, "rb", buffering=0) as linked:
        os.unlink(path)
        with open(path, "xb", buffering=0) as copy:
            shutil.copyfileobj(linked, copy, _COPY_BYTES)


def _compare(named: set[str], written: set[str]) -> None:
    faults = []
    if named - written:
        faults.append(f"named but not written: {_listed(named - written)}")
    if written - named:
        faults.append(f"written but not named: {_listed(written - named)}")
    if faults:
        raise OutputError(
            f"{'; '.join(faults)}. Each file in `out` needs a row whose `output` is its name, "
            "or a key of a row with the value File(name)."
        )


def _listed(names: set[str], shown: int = 5) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(sorted(names)[:shown]) + more
