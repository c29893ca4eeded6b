"""The watcher's loop over a real folder and a real bucket, with a real Prefect server."""

import os

import pytest
from live import wait_for
from object_store import upload

from batchmill import ManifestError
from batchmill.orchestration.arrivals.folder_watcher import FolderWatcher
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
@pytest.mark.usefixtures("used_server")
def test_watching_resumes_when_a_removed_source_is_back(source, folder_watcher, polled):
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
    with pytest.raises(EndedError):
        watcher.run()
    assert reported == [["a.txt"], ["b.txt"]]
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

    watcher = watching(f"{bucket}/in", None, report, print)
    watcher.start()
    upload(words, f"{bucket}/in")
    with pytest.raises(EndedError):
        watcher.run()
    assert reported == [["a.txt", "b.txt", "c.txt", "d.txt", "manifest.csv"], ["e.txt"]]


def test_a_source_that_does_not_exist_at_the_start_is_rejected(source, folder_watcher):
    source.rmdir()
    with pytest.raises(ManifestError, match="no such folder"):
        watching(source, folder_watcher, print, print).start()


def has_changed(folder_watcher):
    return folder_watcher.wait(0.1)


def test_new_files_and_a_replaced_folder_are_changes(source, folder_watcher):
    # The start of watching is a change too, because files may exist already.
    wait_for(lambda: has_changed(folder_watcher), "the start of watching")
    wait_for(lambda: not folder_watcher.wait(1), "no changes")
    (source / "new" / "deep").mkdir(parents=True)
    wait_for(lambda: has_changed(folder_watcher), "the change by new folders")
    wait_for(lambda: not folder_watcher.wait(1), "no changes")
    source.rename(source.with_name("other"))
    wait_for(lambda: has_changed(folder_watcher), "the change by the removal of the folder")
    source.mkdir()
    wait_for(lambda: has_changed(folder_watcher), "the change by the new folder")
    wait_for(lambda: not folder_watcher.wait(1), "no changes")
    (source / "a.txt").write_text("a")
    wait_for(lambda: has_changed(folder_watcher), "the change by a file in the new folder")


def test_a_name_that_is_not_utf8_does_not_stop_the_watcher(source, folder_watcher):
    wait_for(lambda: has_changed(folder_watcher), "the start of watching")
    wait_for(lambda: not folder_watcher.wait(1), "no changes")
    (source / os.fsdecode(b"bad\xff.txt")).write_text("b")
    wait_for(lambda: has_changed(folder_watcher), "the change by the file with the bad name")
    wait_for(lambda: not folder_watcher.wait(1), "no changes")
    (source / "a.txt").write_text("a")
    wait_for(lambda: has_changed(folder_watcher), "the change by the second file")
    assert folder_watcher.failure == ""
