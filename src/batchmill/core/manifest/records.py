"""Read JSON Lines and Parquet manifests, and save a list or DataFrame as Parquet."""

import io
import json
import os
from array import array
from collections import Counter
from typing import Any

import pandas as pd
import pyarrow as pa

from batchmill.core.layout import SAVED_MANIFEST
from batchmill.core.manifest.delimited import checked_text
from batchmill.core.manifest.manifest import Manifest
from batchmill.core.manifest.source import Source, numbered
from batchmill.core.storage import open_store
from batchmill.core.urls import absolute, parent
from batchmill.errors import ManifestError

# pandas stores `attrs` in a Parquet file. This attribute is the folder of a saved list's inputs.
_ROOT_ATTRIBUTE = "batchmill.root"
# Python objects take up to 15 times the memory of their JSON text.
MAX_LINE_BYTES = 32 * 2**20
# Each object has a dict and keys of its own, and a DataFrame has only their values.
_FRAME_ROWS = 10_000


class _DuplicateKeyError(ValueError):
    """Two keys of a JSON object are equal. The json module would silently keep the last value."""


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        key = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise _DuplicateKeyError(f"the key {key!r} occurs more than once. Rename or delete one.")
    return value


# json.loads() would make a decoder for each line.
_DECODER = json.JSONDecoder(object_pairs_hook=_without_duplicates)


def read_json_lines(place: str, data: bytes) -> Source:
    """Read the content of a file with one JSON object per line.

    Args:
        place: The file's path or URL.
        data: Its content.

    Returns:
        One row per object.
    """
    data, faults = checked_text(place, data)
    if not data.strip():
        faults = faults or ["is empty. Add one JSON object per line."]
    rows: list[dict[str, Any]] = []
    frames: list[pd.DataFrame] = []
    numbers = array("q")
    for number, line in enumerate(io.BytesIO(data), 1):
        fault = _read_line(line.rstrip(b"\n"), rows) if line.strip() else None
        if fault:
            faults.append(f"line {number}: {fault}")
        elif line.strip():
            numbers.append(number)
        if len(rows) == _FRAME_ROWS:
            frames.append(pd.DataFrame(rows, dtype=object))
            rows.clear()
    if rows or not frames:
        frames.append(pd.DataFrame(rows, dtype=object))
    return Source(
        name=place,
        form="typed",
        # With dtype=object, whole numbers stay whole in a column with missing values.
        frame=pd.concat(frames, ignore_index=True),
        folder=parent(place),
        locate=lambda: [f"line {number}" for number in numbers],
        faults=faults,
    )


def flat(frame: pd.DataFrame) -> pd.DataFrame:
    """Turn a named index into columns, and number the rows from 0."""
    names = [name for name in frame.index.names if name is not None]
    return frame.reset_index(drop=not names or any(name in frame.columns for name in names))


def _read_line(line: bytes, rows: list[dict[str, Any]]) -> str | None:
    """Add a line's object to `rows`, or return the fault."""
    if len(line) > MAX_LINE_BYTES:
        return (
            f"has more than {MAX_LINE_BYTES >> 20} MiB. Write large values to files, and name the "
            "files in columns."
        )
    try:
        value = _DECODER.decode(line.decode("utf-8", "replace"))
    except _DuplicateKeyError as error:
        return str(error)
    except (ValueError, RecursionError) as error:
        return f"is not JSON ({error}). Fix the JSON, or delete the line."
    if not isinstance(value, dict):
        return 'is not a JSON object. Write {"input": "a.wav", ...} on each line.'
    try:
        "".join(value).encode()
    except UnicodeEncodeError:
        return "a key has a character that is not UTF-8. Rename it."
    rows.append(value)
    return None


def read_parquet(place: str, data: bytes | pa.Buffer) -> Source:
    """Read the content of a Parquet file, with its column types.

    Args:
        place: The file's path or URL.
        data: Its content.

    Returns:
        One row per row of the file.

    Raises:
        ManifestError: The file is not Parquet.
    """
    try:
        frame = pd.read_parquet(pa.BufferReader(data), dtype_backend="pyarrow")
    except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError.
        raise ManifestError(
            place, [f"cannot be read as Parquet ({error}). Write the file again."]
        ) from error
    frame = flat(frame)
    return Source(
        name=place,
        form="typed",
        frame=frame,
        folder=frame.attrs.get(_ROOT_ATTRIBUTE) or parent(place),
        locate=numbered("row", len(frame)),
        faults=[] if len(frame) else ["has no rows. Add one row per input."],
    )


def listed_manifest(output: str | os.PathLike[str]) -> str:
    """Return the path or URL where a dataset saves a manifest that was not a file."""
    return open_store(absolute(os.fspath(output))).url_of(SAVED_MANIFEST)


def save_manifest(manifest: Manifest, place: str, input_column: str) -> None:
    """Write a manifest as Parquet, so that loading the file gives the same inputs.

    Args:
        manifest: The manifest to save.
        place: Path or URL of the file to write.
        input_column: The name of the column for the inputs.

    Raises:
        StoreError: The file cannot be written.
    """
    frame = manifest.manifest_columns.to_pandas(types_mapper=pd.ArrowDtype)
    frame.insert(0, input_column, manifest.inputs["input"].to_pandas())
    frame.attrs[_ROOT_ATTRIBUTE] = manifest.root
    folder, _, name = place.rpartition("/")
    open_store(folder).write_atomic(name, lambda file: frame.to_parquet(file, index=False))
