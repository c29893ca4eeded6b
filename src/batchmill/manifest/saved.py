"""A list or DataFrame, saved as the manifest of the dataset that is made from it."""

import os

import pandas as pd

from batchmill.ledger.ledger import FOLDER
from batchmill.manifest.load import Manifest
from batchmill.manifest.records import ROOT_ATTRIBUTE
from batchmill.storage import open_store
from batchmill.storage.urls import absolute


def listed_manifest(output: str | os.PathLike[str]) -> str:
    """Return where the manifest of a dataset is saved if it was no file."""
    return open_store(absolute(os.fspath(output))).place(f"{FOLDER}/manifest.parquet")


def save_manifest(manifest: Manifest, place: str, input_column: str) -> None:
    """Write a manifest as Parquet, so that loading it gives the same inputs. Raises StoreError."""
    frame = manifest.carried.to_pandas(types_mapper=pd.ArrowDtype)
    frame.insert(0, input_column, manifest.inputs["input"].to_pandas())
    frame.attrs[ROOT_ATTRIBUTE] = manifest.root
    folder, _, name = place.rpartition("/")
    open_store(folder).fill(name, lambda file: frame.to_parquet(file, index=False))
