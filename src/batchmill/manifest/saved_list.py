"""Save a list or DataFrame as a manifest file in the dataset."""

import os

import pandas as pd

from batchmill.layout import SAVED_MANIFEST
from batchmill.manifest.load import Manifest
from batchmill.manifest.records import ROOT_ATTRIBUTE
from batchmill.storage import open_store
from batchmill.urls import absolute


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
    frame.attrs[ROOT_ATTRIBUTE] = manifest.root
    folder, _, name = place.rpartition("/")
    open_store(folder).write_atomic(name, lambda file: frame.to_parquet(file, index=False))
