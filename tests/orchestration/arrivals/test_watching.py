"""The watcher's loop over a real folder and a real bucket, with a real Prefect server."""

import os

import pytest
from harness.object_store import upload

from batchmill import ManifestError
from batchmill.orchestration.arrivals.watch_target import WatchTarget
from batchmill.orchestration.arrivals.watching import SourceWatcher

pytestmark = pytest.mark.slow


class EndedError(Exception):
    """Ends the loop."""


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    return folder


def watching(source, report, warn):
    watched = WatchTarget(source=str(source), pattern="*", min_age=0)
    options = {"every_seconds": 0.2, "known": {}}
    return SourceWatcher(watched, **options, report=report, warn=warn)


@pytest.mark.usefixtures("used_server")
def test_watching_resumes_when_a_removed_source_is_back(source):
    away = source.with_name("away")
    reported, warnings = [], []

    def report(payload):
        reported.append(payload["first"])
        if len(reported) == 2:
            raise EndedError
        source.rename(away)

    def warn(text):
        warnings.append(text)
        if len(warnings) == 1:
            away.rename(source)
        else:
            (source / "b.txt").write_text("b")

    watcher = watching(source, report, warn)
    # A name that is not UTF-8 does not stop the watcher.
    (source / os.fsdecode(b"bad\xff.md")).write_text("b")
    (source / "a.txt").write_text("a")
    watcher.start()
    with pytest.raises(EndedError):
        watcher.run()
    assert reported == [["a.txt", "bad\\xff.md"], ["b.txt"]]
    assert ["no such folder" in text for text in warnings] == [True, False]
    assert "can be read again" in warnings[1]


@pytest.mark.usefixtures("used_server")
def test_an_empty_bucket_can_be_watched(bucket, words):
    reported = []

    def report(payload):
        reported.append(payload["first"])
        if len(reported) == 2:
            raise EndedError
        (words / "e.txt").write_text("new")
        upload(words, f"{bucket}/in")

    watcher = watching(f"{bucket}/in", report, print)
    watcher.start()
    upload(words, f"{bucket}/in")
    with pytest.raises(EndedError):
        watcher.run()
    assert reported == [["a.txt", "b.txt", "c.txt", "d.txt", "manifest.csv"], ["e.txt"]]


def test_a_source_that_does_not_exist_at_the_start_is_rejected(source):
    source.rmdir()
    with pytest.raises(ManifestError, match="no such folder"):
        watching(source, print, print).start()
