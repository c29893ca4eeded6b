"""The flow that compares a dataset with its ledger."""

import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from batchmill.flows.verify_dataset import verify_dataset
from prefect.logging import disable_run_logger

from batchmill.datasets.maintenance.verify import Difference

module = sys.modules["batchmill.flows.verify_dataset"]


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ([], "/d matches its ledger. 2 of 4 made again."),
        (["duplicate"], "/d matches its ledger, with warnings: 1 duplicate. 2 of 4 made again."),
        (["leak"], "/d: 1 leak. Run the job again to rebuild missing or changed files."),
    ],
)
def test_the_message_counts_the_results_that_were_made_again(monkeypatch, kinds, expected):
    differences = [Difference(kind, "metadata.parquet") for kind in kinds]
    proof = SimpleNamespace(is_equal=True, short="2 of 4 made again", lines=list)
    monkeypatch.setattr(module, "prove", lambda *_: iter([proof]))
    monkeypatch.setattr(module, "record_proof", lambda _: "")
    monkeypatch.setattr(module, "open_ledger", lambda _: None)
    monkeypatch.setattr(module, "examine", lambda *_, **__: differences)
    monkeypatch.setattr(module, "LiveArtifact", MagicMock())
    with disable_run_logger():
        state = verify_dataset.fn("/d", execute=2)
    assert (state.message, state.is_failed()) == (expected, "leak" in kinds)
