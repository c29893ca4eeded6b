"""Load and check a manifest. Its inputs are looked up with `stat`, never opened."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.layout import OUTPUT_COLUMN
from batchmill.core.manifest.arrow_columns import to_arrow_table
from batchmill.core.manifest.check_inputs import check_inputs
from batchmill.core.manifest.companions import check_companions, companion_rows, lack_companions
from batchmill.core.manifest.delimited import type_columns
from batchmill.core.manifest.file_stats import MISSING_SIZE, check_min_age, is_too_young
from batchmill.core.manifest.manifest import Manifest
from batchmill.core.manifest.readers import read_source
from batchmill.core.manifest.source import ManifestLike, Source
from batchmill.core.partitions import manifest_groups
from batchmill.core.partitions.partitioning import Partitioning
from batchmill.core.sizes import counted
from batchmill.core.storage import is_url
from batchmill.core.storage.fingerprints import digest_of_files, joint_digest
from batchmill.core.storage.large_tables import with_column
from batchmill.core.urls import shown_url, url_fault, without_file_scheme
from batchmill.errors import ManifestError


def load_manifest(
    source: ManifestLike,
    *,
    input_column: str = "input",
    file_columns: Sequence[str] = (),
    folders: bool = False,
    root: str | os.PathLike[str] | None = None,
    pattern: str = "*",
    min_age: float = 0,
    may_be_empty: bool = False,
    partitioning: Partitioning | None = None,
    allow_outside: bool = False,
) -> Manifest:
    """Read a manifest and check every row.

    Args:
        source: The path or URL of a CSV, TSV, JSON Lines or Parquet file, of a folder (searched
            recursively), of a glob or of a dataset. Or a list of paths and URLs, or a DataFrame.
        input_column: The column that names the inputs.
        file_columns: The columns that name companions of the inputs.
        folders: True if the inputs are folders.
        root: The folder or URL that relative inputs are relative to. Default: the manifest's
            folder, or the working directory for a list or DataFrame.
        pattern: The pattern that files of a folder or bucket prefix must match.
        min_age: Leave out files of a local folder or glob that changed less than this many
            seconds ago.
        may_be_empty: True to accept a listing without files.
        partitioning: How to divide the inputs. The manifest must have its columns and must
            not assign the inputs of one group to different partitions.
        allow_outside: True to accept inputs outside a given root.

    Returns:
        The checked manifest.

    Raises:
        ManifestError: The manifest cannot be used. It lists all faults, each with its line.
    """
    check_min_age(min_age)
    table = read_source(source, pattern, may_be_empty=may_be_empty, folders=folders)
    if folders and table.form == "dataset":
        fault = "is a dataset, whose outputs are files. Drop --input-kind folder."
        raise ManifestError(table.name, [fault])
    column = "input" if table.form in ("listing", "dataset") else input_column
    faults = _check_columns(table, column, may_be_empty=may_be_empty)
    if partitioning:
        faults += manifest_groups.missing_columns(table.frame, partitioning)
    base = _resolve_root(table, root, faults)
    confined = root is not None and not allow_outside
    inputs = check_inputs(table, column, base, faults, confined=confined, folders=folders)
    companions = check_companions(table, file_columns, base, faults, confined=confined)
    groups = None
    if partitioning and not faults:
        groups, faults = _check_groups(table, inputs, partitioning)
    if faults:
        raise ManifestError(table.name, sorted(faults, key=_line_number))
    columns = table.frame
    if table.form == "text":
        # A text file has no types. They are inferred from the values.
        columns = type_columns(columns, leave={column, *file_columns})
    manifest = Manifest(
        name=table.name,
        root=base,
        inputs=_with_companions(inputs, companions),
        manifest_columns=to_arrow_table(columns.drop(columns=column)),
        companions=companions,
        groups=groups,
        dataset=_dataset_of(table),
        version=table.version,
        in_memory=not isinstance(source, str | os.PathLike),
    )
    # Objects in a bucket appear only when they are complete. A table lists its files on purpose, so
    # their age does not matter.
    if min_age and table.form == "listing" and not is_url(table.folder):
        return _without_young_files(manifest, min_age, may_be_empty=may_be_empty)
    return manifest


def _check_columns(table: Source, column: str, *, may_be_empty: bool) -> list[str]:
    """Return the faults of a manifest's columns. Raises ManifestError without an input column."""
    frame = table.frame
    is_empty_listing = table.form == "listing" and frame.empty and may_be_empty
    faults = [] if is_empty_listing else list(table.faults)
    if column not in frame.columns:
        # The reader's faults already explain an empty table.
        if not (faults and frame.empty):
            faults.append(_missing_input_column(table, column))
        raise ManifestError(table.name, faults)
    if frame.empty and not faults and not is_empty_listing:
        faults.append("has a header, but no inputs. Add one line per input.")
    reserved = {OUTPUT_COLUMN, *({"input"} - {column})} & set(frame.columns)
    faults += [
        f"column {name!r} has the name of a column that batchmill writes. Rename it."
        for name in sorted(reserved)
    ]
    return faults


def _missing_input_column(table: Source, column: str) -> str:
    names = table.frame.columns
    known = ", ".join(repr(str(name)) for name in names) or "none"
    remedy = "Rename the column, or name yours with --input-column."
    if table.form == "text":
        remedy = f"Line 1 is the header. {remedy}"
    if len(names) == 1 and any(sign in known for sign in ";|"):
        remedy = "Separate the fields with commas (.csv) or tabs (.tsv)."
    return f"no column {column!r} (found: {known}). {remedy}"


def _resolve_root(table: Source, root: str | os.PathLike[str] | None, faults: list[str]) -> str:
    """Return the absolute folder or URL of the inputs. Add the faults of the option --root."""
    if root is None:
        return table.folder
    base = without_file_scheme(os.fspath(root))
    base = base.rstrip("/") if is_url(base) else os.path.abspath(base)
    if is_url(base) and url_fault(base):
        raise ManifestError(table.name, [f"--root {shown_url(base)}: {url_fault(base)}"])
    if not is_url(base) and not os.path.isdir(base):
        faults.append(f"--root {root}: no such folder. Give the folder that holds the inputs.")
    elif table.form in ("listing", "dataset") and base != table.folder:
        faults.append(
            f"--root {root}: a listing's inputs are relative to {table.folder}. Drop --root."
        )
    return base


def _check_groups(
    table: Source, inputs: pa.Table, partitioning: Partitioning
) -> tuple[pa.Table, list[str]]:
    # The groups are read from the values before type_columns(): a column's type depends on all of
    # its rows, so the text of a number could change when a row is added.
    inherited = manifest_groups.inherited_groups(_dataset_of(table), table.version, partitioning)
    groups = manifest_groups.read_groups(table.frame, inputs["input"], partitioning, inherited)
    return groups, manifest_groups.faults_of_groups(groups, partitioning, lambda: table.places)


def _dataset_of(table: Source) -> str:
    return table.folder if table.form == "dataset" else ""


def _with_companions(inputs: pa.Table, companions: Mapping[str, pa.Table]) -> pa.Table:
    """Add the digests of companions. An input that lacks a companion looks like a missing one."""
    if not companions:
        return inputs
    own, rows = inputs["companions"].to_pylist(), companion_rows(companions, len(inputs))
    pairs = zip(own, map(digest_of_files, rows), strict=True)
    digests = pa.array([joint_digest(*pair) for pair in pairs], pa.string())
    table = with_column(inputs, "companions", digests)
    is_missing = lack_companions(companions)
    state = {"size": MISSING_SIZE, "mtime_ns": 0, "etag": None, "ctime_ns": None}
    for name, value in state.items():
        table = with_column(table, name, pc.if_else(is_missing, value, table[name]))
    return table


def _without_young_files(manifest: Manifest, min_age: float, *, may_be_empty: bool) -> Manifest:
    """Leave out the files of a local listing that another process may still be writing."""
    inputs, groups = manifest.inputs, manifest.groups
    is_young = is_too_young(inputs, min_age)
    is_old = pc.invert(is_young)
    young = inputs["input"].filter(is_young).combine_chunks()
    if len(young) == len(inputs) and len(young) and not may_be_empty:
        count = counted(len(young), "file is", "files are")
        fault = (
            f"has no inputs, because {count} younger than --min-age {min_age:g} (seconds). "
            "Wait, or give a smaller --min-age."
        )
        raise ManifestError(manifest.name, [fault])
    return replace(
        manifest,
        inputs=inputs.filter(is_old),
        too_young=young,
        groups=None if groups is None else groups.filter(is_old),
    )


def _line_number(fault: str) -> int:
    number = re.match(r"(?:line|row|file) (\d+):", fault)
    return int(number[1]) if number else 0
