"""The event about new files, and the checks of the watched source."""

from itertools import pairwise

import pytest
from harness.live import free_ports
from prefect.settings import PREFECT_API_URL, temporary_settings

from batchmill import BatchmillError, OptionError
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.storage import LocalStore
from batchmill.errors import ServiceError
from batchmill.orchestration.arrivals.detection import FileVersion
from batchmill.orchestration.arrivals.watch_target import (
    WatchTarget,
    read_recorded_versions,
    watched,
)
from batchmill.orchestration.arrivals.watching import announce, make_payload, retry_pauses
from batchmill.orchestration.server.api import resource_id


def test_pauses_between_attempts_grow_to_a_minute():
    steps = [pause for pause, _ in zip(retry_pauses(), range(10), strict=False)]
    assert (steps[0], steps[-1]) == (1, 60)
    assert all(later >= sooner for sooner, later in pairwise(steps))


def test_the_event_names_source_files_and_deployment():
    of = WatchTarget(source="/data/in", pattern="*.wav", min_age=1, deployment="a/b")
    payload = make_payload(of, {f"{number:02d}.wav": FileVersion(10, 0) for number in range(30)})
    assert payload == {
        "source": "/data/in",
        "pattern": "*.wav",
        "count": 30,
        "bytes": 300,
        "first": [f"{number:02d}.wav" for number in range(20)],
    }
    assert resource_id("source", "/data/in").startswith("batchmill.source.in-")
    assert resource_id("source", "/data/in") != resource_id("source", "/other/in")


@pytest.mark.slow
def test_an_unreachable_server_raises_a_service_error():
    (port,) = free_ports()
    of = WatchTarget(source="/data/in", pattern="*", min_age=1)
    with (
        temporary_settings({PREFECT_API_URL: f"http://user:secret@127.0.0.1:{port}/api"}),
        pytest.raises(ServiceError, match="did not accept") as error,
    ):
        announce(of, {})
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("source", "options", "expected"),
    [
        ("manifest.csv", {}, "is a file. Name the folder"),
        ("*.txt", {}, "is a pattern"),
        ("s3://bucket/*.txt", {}, "is a pattern"),
        ("", {}, "has no name"),
        ("s3://key:secret@bucket/in", {}, "holds a credential"),
        ("bad\udcff", {}, "is not UTF-8"),
        ("nosuch://bucket/in", {}, "no library opens"),
        (".", {"min_age": -1}, "expected a number of seconds, 0 or more"),
        (".", {"min_age": float("nan")}, "0 or more"),
    ],
)
def test_a_source_that_cannot_be_watched_is_rejected(
    words, monkeypatch, bucket, source, options, expected
):
    monkeypatch.chdir(words)
    source = source.replace("s3://bucket", bucket)
    with pytest.raises(BatchmillError, match=expected) as error:
        watched(source, **options)
    assert "secret" not in str(error.value)


def test_a_dataset_that_does_not_exist_yet_is_reported(tmp_path):
    out = tmp_path / "out"
    of = WatchTarget(source="/in", pattern="*", min_age=1, deployment="a/b", dataset=str(out))
    with pytest.raises(OptionError, match=f"^the dataset {out} does not exist yet.$"):
        read_recorded_versions(of)
    Ledger(LocalStore(out)).create()
    assert read_recorded_versions(of) == {}


def test_a_source_becomes_absolute(words, monkeypatch):
    monkeypatch.chdir(words.parent)
    of = watched("words/", min_age=0)
    assert (of.source, of.pattern, of.min_age) == (str(words), "*", 0)
    assert watched("words", min_age=5).min_age > 5
