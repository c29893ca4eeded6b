"""Run one function over every file of a manifest. One bad file does not stop the run.

- `run`: run a step over every input of a manifest, and write the dataset.
- `infer`: run a model over every input of a manifest.
- `try_one`: run a step on one input in this process, for debugging.
- `plan`: return what `run` would do.
- `update`: run the recorded job of a dataset again.
- `status`: return the counts and the tables of a dataset.
- `failures`: return the inputs of a dataset that are not ok, as a DataFrame.
- `retry`: release failed inputs, so that the next run executes them.
- `verify`: compare a dataset's files with its ledger.
- `open_dataset`: open a dataset as a torch Dataset, for training.
- `export`: write a dataset as the shards of WebDataset or Hugging Face.
- `verify_export`: compare an export with its index.
- `review`: show on a sample what a change of the step does.
- `graph`: return the datasets that a dataset is made of.
- `metadata`: return the table of a dataset, or of an earlier version.
- `versions`, `keep`, `diff`: list, name and compare the versions of a dataset.
- `load_manifest`: read and check a manifest.
- `File`: a file that a step wrote, as a value in its row.

Each has a docstring: `help(batchmill.run)`. Errors are subclasses of `BatchmillError`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from batchmill import version

if TYPE_CHECKING:
    from batchmill.api.datasets import (
        diff,
        failures,
        graph,
        keep,
        metadata,
        retry,
        verify,
        versions,
    )
    from batchmill.api.exports import export, verify_export
    from batchmill.api.jobs.plan_job import PlanResult
    from batchmill.api.run import infer, plan, review, run, status, update
    from batchmill.api.run_result import RunResult
    from batchmill.api.try_one import TryResult, try_one
    from batchmill.core.manifest import Manifest, load_manifest
    from batchmill.datasets.exporting.run_export import ExportResult
    from batchmill.datasets.maintenance.versions import VersionDiff
    from batchmill.datasets.reading.padding import Padded, pad_collate
    from batchmill.datasets.reading.sample_dataset import SampleDataset, open_dataset
    from batchmill.errors import (
        BatchmillError,
        CancelledError,
        LedgerError,
        ManifestError,
        OptionError,
        RetryAfter,
        RunError,
        ServiceError,
        StepError,
        StoreError,
        WorkerError,
    )
    from batchmill.runs.inputs.result_rows import File

__version__ = version.VERSION
__all__ = [
    "BatchmillError",
    "CancelledError",
    "ExportResult",
    "File",
    "LedgerError",
    "Manifest",
    "ManifestError",
    "OptionError",
    "Padded",
    "PlanResult",
    "RetryAfter",
    "RunError",
    "RunResult",
    "SampleDataset",
    "ServiceError",
    "StepError",
    "StoreError",
    "TryResult",
    "VersionDiff",
    "WorkerError",
    "diff",
    "export",
    "failures",
    "graph",
    "infer",
    "keep",
    "load_manifest",
    "metadata",
    "open_dataset",
    "pad_collate",
    "plan",
    "retry",
    "review",
    "run",
    "status",
    "try_one",
    "update",
    "verify",
    "verify_export",
    "versions",
]

# Names are imported on first use: `import batchmill` loads no torch, pandas, prefect or ray. All
# names without a home in this list are in _OTHERS.
_OTHERS = "batchmill.api.datasets"
_HOMES = {
    "batchmill.api.exports": ("export", "verify_export"),
    "batchmill.api.run": ("infer", "plan", "review", "run", "status", "update"),
    "batchmill.api.run_result": ("RunResult",),
    "batchmill.api.try_one": ("TryResult", "try_one"),
    "batchmill.errors": tuple(name for name in __all__ if name.endswith(("Error", "RetryAfter"))),
    "batchmill.runs.inputs.result_rows": ("File",),
    "batchmill.datasets.exporting.run_export": ("ExportResult",),
    "batchmill.api.jobs.plan_job": ("PlanResult",),
    "batchmill.datasets.maintenance.versions": ("VersionDiff",),
    "batchmill.core.manifest": ("Manifest", "load_manifest"),
    "batchmill.datasets.reading.sample_dataset": ("SampleDataset", "open_dataset"),
    "batchmill.datasets.reading.padding": ("Padded", "pad_collate"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'batchmill' has no attribute {name!r}")
    home = next((home for home, names in _HOMES.items() if name in names), _OTHERS)
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
