"""The flow that checks a source once for new data."""

import sys
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from uuid import uuid4

import pytest
from batchmill.flows.watch_source import watch_source
from prefect.logging import disable_run_logger

from batchmill.orchestration.arrivals.watch_target import WatchTarget

watch_module = sys.modules["batchmill.flows.watch_source"]


class Api:
    """Replaces Prefect's client. The deployment has one run."""

    def __init__(self, seconds, parameters):
        start = datetime.now(UTC) + timedelta(seconds=seconds)
        self._run = SimpleNamespace(next_scheduled_start_time=start, parameters=parameters)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def read_flow_runs(self, flow_run_filter, sort=None):
        # Only the query for runs that have not begun has a sort.
        return [self._run] if sort else []


@pytest.mark.parametrize(
    ("seconds", "parameters", "is_announced"),
    [
        (60, {"manifest": "{}"}, False),
        (60, {"manifest": "{}/"}, False),
        (60, {"manifest": "/other"}, True),
        (60, {"job": "block:nightly"}, False),
        (600, {"job": "block:nightly"}, True),
    ],
)
def test_new_files_of_a_run_that_begins_soon_are_not_announced(
    tmp_path, monkeypatch, seconds, parameters, is_announced
):
    source, announced = tmp_path / "in", []
    source.mkdir()
    (source / "a.txt").write_text("new")
    target = WatchTarget(
        source=str(source), pattern="*", min_age=0, deployment_id=uuid4(), dataset=str(tmp_path)
    )
    api = Api(seconds, {name: value.format(source) for name, value in parameters.items()})
    monkeypatch.setattr(watch_module, "get_client", lambda sync_client: api)
    monkeypatch.setattr(watch_module, "watched", lambda *_, **__: target)
    monkeypatch.setattr(watch_module, "announce_with_retries", lambda *_: announced.append(1))
    with disable_run_logger():
        state = watch_source.fn(str(source), "preprocess/nightly")
    ends = " announced" if is_announced else "; a run that is already scheduled will process them"
    assert state.message == f"1 new file{ends}"
    assert announced == [1] * is_announced
