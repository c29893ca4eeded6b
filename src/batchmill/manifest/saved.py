"""A list or DataFrame, saved as the manifest of the dataset that is made from it."""

import os
from pathlib import Path

import pandas as pd

from batchmill.ledger import FOLDER
from batchmill.manifest.load import Manifest
from batchmill.manifest.records import ROOT_ATTRIBUTE
from batchmill.storage import LocalStore


def listed_manifest(output: str | os.PathLike[str]) -> str:
    """Return where the manifest of a dataset is saved if it was no file."""
    return os.path.join(os.path.abspath(output), FOLDER, "manifest.parquet")


def save_manifest(manifest: Manifest, path: str, input_column: str) -> None:
    """Write a manifest as Parquet, so that loading it gives the same inputs. Raises StoreError."""
    frame = manifest.carried.to_pandas(types_mapper=pd.ArrowDtype)
    frame.insert(0, input_column, manifest.inputs["input"].to_pandas())
    frame.attrs[ROOT_ATTRIBUTE] = str(manifest.root)
    place = Path(path)
    LocalStore(place.parent).fill(place.name, lambda file: frame.to_parquet(file, index=False))
