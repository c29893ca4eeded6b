"""The watcher's loop over a real folder, with a real server: what it does when things go away."""

import os

import pytest
from batchmill.flows.arrivals.folder_watcher import FolderWatcher
from batchmill.flows.arrivals.watch_target import WatchTarget
from batchmill.flows.arrivals.watching import SourceWatcher
from live import wait_for
from object_store import upload
from prefect.settings import PREFECT_API_URL, temporary_settings

from batchmill import ManifestError

pytestmark = pytest.mark.slow


class EndedError(Exception):
    """Ends the loop."""


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    return folder


@pytest.fixture
def folder_watcher(source):
    folder_watcher = FolderWatcher(str(source))
    yield folder_watcher
    folder_watcher.close()


def watching(source, folder_watcher, report, warn):
    watched = WatchTarget(source=str(source), pattern="*", min_age=0)
    options = {"every_seconds": 0.2, "folder_watcher": folder_watcher, "known": {}}
    return SourceWatcher(watched, **options, report=report, warn=warn)


@pytest.mark.parametrize("polled", [False, True])
def test_a_source_that_goes_and_comes_back(source, folder_watcher, prefect_server, polled):
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

    watcher = watching(source, None if polled else folder_watcher, report, warn)
    (source / "a.txt").write_text("a")
    watcher.start()
    with temporary_settings({PREFECT_API_URL: prefect_server}), pytest.raises(EndedError):
        watcher.run()
    assert reported == [["a.txt"], ["b.txt"]]
    assert ["no such folder" in text for text in warnings] == [True, False]
    assert "can be read again" in warnings[1]


def test_a_bucket_with_nothing_in_it_may_be_watched(prefect_server, bucket, words):
    reported = []

    def report(payload):
        reported.append(payload["first"])
        if len(reported) == 2:
            raise EndedError
        (words / "e.txt").write_text("new")
        upload(words, f"{bucket}/in")

    watcher = watching(f"{bucket}/in", None, report, print)
    watcher.start()
    upload(words, f"{bucket}/in")
    with temporary_settings({PREFECT_API_URL: prefect_server}), pytest.raises(EndedError):
        watcher.run()
    assert reported == [["a.txt", "b.txt", "c.txt", "d.txt", "manifest.csv"], ["e.txt"]]


def test_a_source_that_is_not_there_at_the_beginning_is_told(source, folder_watcher):
    source.rmdir()
    with pytest.raises(ManifestError, match="no such folder"):
        watching(source, folder_watcher, print, print).start()


def rings(folder_watcher):
    return folder_watcher.wait(0.1)


def test_the_bell_rings_for_what_comes_and_for_another_folder_of_this_name(source, folder_watcher):
    # When it hears, and for what is there already.
    wait_for(lambda: rings(folder_watcher), "that it hears")
    wait_for(lambda: not folder_watcher.wait(1), "silence")
    (source / "new" / "deep").mkdir(parents=True)
    wait_for(lambda: rings(folder_watcher), "the first ring")
    wait_for(lambda: not folder_watcher.wait(1), "silence")
    source.rename(source.with_name("other"))
    wait_for(lambda: rings(folder_watcher), "the ring for its going")
    source.mkdir()
    wait_for(lambda: rings(folder_watcher), "the ring for its coming")
    wait_for(lambda: not folder_watcher.wait(1), "silence")
    (source / "a.txt").write_text("a")
    wait_for(lambda: rings(folder_watcher), "the ring of the new folder")


def test_a_name_that_is_not_utf8_does_not_silence_the_bell(source, folder_watcher):
    wait_for(lambda: rings(folder_watcher), "that it hears")
    wait_for(lambda: not folder_watcher.wait(1), "silence")
    (source / os.fsdecode(b"bad\xff.txt")).write_text("b")
    wait_for(lambda: rings(folder_watcher), "the first ring")
    wait_for(lambda: not folder_watcher.wait(1), "silence")
    (source / "a.txt").write_text("a")
    wait_for(lambda: rings(folder_watcher), "the second ring")
    assert folder_watcher.failure == ""
