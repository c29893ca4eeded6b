"""JSON Lines and Parquet manifests, read by pandas."""

import io
import json
from pathlib import Path

import pandas as pd

from batchmill.errors import ManifestError
from batchmill.manifest.delimited import encoding_faults
from batchmill.manifest.source import Source, numbered

# pandas keeps `attrs` in a Parquet file: the folder that a saved list's inputs are relative to.
ROOT_ATTRIBUTE = "batchmill.root"


def read_json_lines(path: Path) -> Source:
    """Read one JSON object a line. Lists and objects in it stay JSON text."""
    data = path.read_bytes()
    faults = encoding_faults(data)
    frame = pd.DataFrame()
    if not data.strip():
        faults = faults or ["is empty. Give it one JSON object a line."]
    elif not faults:
        try:
            frame = pd.read_json(
                io.BytesIO(data), lines=True, dtype=False, convert_dates=False, convert_axes=False
            )
        except ValueError:
            faults = _line_faults(data)
        else:
            if not data.lstrip().startswith(b"{"):
                faults = _line_faults(data)
    return Source(
        name=str(path),
        frame=_nested_as_text(frame),
        folder=path.parent,
        locate=lambda: [
            f"line {number}" for number, line in enumerate(data.splitlines(), 1) if line.strip()
        ],
        faults=faults,
    )


def read_parquet(path: Path) -> Source:
    """Read a Parquet file; its column types are kept."""
    try:
        frame = pd.read_parquet(path, dtype_backend="pyarrow")
    except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError.
        raise ManifestError(
            str(path), [f"cannot be read as Parquet ({error}). Write it again."]
        ) from error
    frame = frame.reset_index(drop=True)
    return Source(
        name=str(path),
        frame=frame,
        folder=Path(frame.attrs.get(ROOT_ATTRIBUTE, path.parent)),
        locate=numbered("row", len(frame)),
        faults=[] if len(frame) else ["has no rows. Give it one row an input."],
    )


def _line_faults(data: bytes) -> list[str]:
    faults = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            faults.append(f"line {number}: is not JSON ({error}). Mend it, or drop the line.")
        else:
            if not isinstance(value, dict):
                faults.append(
                    f'line {number}: is no object. Write {{"input": "a.wav", ...}} on each line.'
                )
    return faults or ["cannot be read as JSON Lines: one JSON object a line is expected."]


def _nested_as_text(frame: pd.DataFrame) -> pd.DataFrame:
    for name in frame.columns:
        column = frame[name]
        if (
            column.dtype == object
            and column.map(lambda value: isinstance(value, dict | list)).any()
        ):
            frame[name] = column.map(
                lambda value: json.dumps(value) if isinstance(value, dict | list) else value
            )
    return frame
