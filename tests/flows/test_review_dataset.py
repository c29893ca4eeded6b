"""The flow that reviews a change."""

from typing import Any

import pytest
from batchmill.flows.review_dataset import review_dataset
from harness.jobs import run_job
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

from batchmill.orchestration.artifacts import artifact_key

STEP = """
def step(source, *, times=1):
    return {"text": source.read_text() * times}
"""


@pytest.fixture
def dataset(used_server, tmp_path, monkeypatch):
    """The path of a dataset of one input."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("one")
    (tmp_path / "repeating.py").write_text(STEP)
    run_job("in", "repeating:step", "out")
    return str(tmp_path / "out")


def run(dataset, **options) -> Any:
    return review_dataset(dataset, **options, return_state=True)


def test_the_flow_shows_what_differs(dataset):
    state = run(dataset, params={"times": 2})
    assert (state.type.value, state.name) == ("COMPLETED", "Different")
    assert state.message == "1 of 1 results differ."
    with get_client(sync_client=True) as client:
        # Other tests use the same server.
        key = ArtifactFilterKey(any_=[artifact_key("review", dataset)])
        (artifact,) = client.read_artifacts(artifact_filter=ArtifactFilter(key=key))
    assert "- `text: differs in 1`" in artifact.data
    state = run(dataset)
    assert (state.name, state.message) == ("Completed", "No result differs.")
