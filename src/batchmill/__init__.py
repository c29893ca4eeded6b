"""batchmill: one function over every file of a manifest, whatever happens on the way."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchmill.errors import (
        BatchmillError,
        CancelledError,
        LedgerError,
        ManifestError,
        OptionError,
        RunError,
        ServiceError,
        StepError,
        StoreError,
        WorkerError,
    )
    from batchmill.manifest import Manifest, load_manifest
    from batchmill.outcome import Outcome
    from batchmill.reading import Padded, SampleDataset, open_dataset, pad_collate

# Looked up when they are used: `import batchmill` loads no torch, pandas, prefect or ray.
_HOMES = {
    "BatchmillError": "batchmill.errors",
    "CancelledError": "batchmill.errors",
    "LedgerError": "batchmill.errors",
    "Manifest": "batchmill.manifest",
    "ManifestError": "batchmill.errors",
    "OptionError": "batchmill.errors",
    "Outcome": "batchmill.outcome",
    "Padded": "batchmill.reading",
    "RunError": "batchmill.errors",
    "SampleDataset": "batchmill.reading",
    "ServiceError": "batchmill.errors",
    "StepError": "batchmill.errors",
    "StoreError": "batchmill.errors",
    "WorkerError": "batchmill.errors",
    "load_manifest": "batchmill.manifest",
    "open_dataset": "batchmill.reading",
    "pad_collate": "batchmill.reading",
}

__version__ = "0.1.0"
__all__ = [
    "BatchmillError",
    "CancelledError",
    "LedgerError",
    "Manifest",
    "ManifestError",
    "OptionError",
    "Outcome",
    "Padded",
    "RunError",
    "SampleDataset",
    "ServiceError",
    "StepError",
    "StoreError",
    "WorkerError",
    "load_manifest",
    "open_dataset",
    "pad_collate",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'batchmill' has no attribute {name!r}")
