"""The watcher's loop over a real folder, with a real server: what it does when things go away."""

import os

import pytest
from batchmill.flows.arrivals.folder_watcher import FolderWatcher
from batchmill.flows.arrivals.watch_target import WatchTarget
from batchmill.flows.arrivals.watching import Watching
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
def bell(source):
    bell = FolderWatcher(str(source))
    yield bell
    bell.close()


def watching(source, bell, tell, complain):
    watched = WatchTarget(source=str(source), pattern="*", settle_seconds=0)
    options = {"every_seconds": 0.2, "bell": bell, "known": {}}
    return Watching(watched, **options, tell=tell, complain=complain)


@pytest.mark.parametrize("polled", [False, True])
def test_a_source_that_goes_and_comes_back(source, bell, prefect_server, polled):
    away = source.with_name("away")
    told, complaints = [], []

    def tell(payload):
        told.append(payload["first"])
        if len(told) == 2:
            raise EndedError
        source.rename(away)

    def complain(text):
        complaints.append(text)
        if len(complaints) == 1:
            away.rename(source)
        else:
            (source / "b.txt").write_text("b")

    watcher = watching(source, None if polled else bell, tell, complain)
    (source / "a.txt").write_text("a")
    watcher.begin()
    with temporary_settings({PREFECT_API_URL: prefect_server}), pytest.raises(EndedError):
        watcher.run()
    assert told == [["a.txt"], ["b.txt"]]
    assert ["no such folder" in text for text in complaints] == [True, False]
    assert "can be read again" in complaints[1]


def test_a_bucket_with_nothing_in_it_may_be_watched(prefect_server, bucket, words):
    told = []

    def tell(payload):
        told.append(payload["first"])
        if len(told) == 2:
            raise EndedError
        (words / "e.txt").write_text("new")
        upload(words, f"{bucket}/in")

    watcher = watching(f"{bucket}/in", None, tell, print)
    watcher.begin()
    upload(words, f"{bucket}/in")
    with temporary_settings({PREFECT_API_URL: prefect_server}), pytest.raises(EndedError):
        watcher.run()
    assert told == [["a.txt", "b.txt", "c.txt", "d.txt", "manifest.csv"], ["e.txt"]]


def test_a_source_that_is_not_there_at_the_beginning_is_told(source, bell):
    source.rmdir()
    with pytest.raises(ManifestError, match="no such folder"):
        watching(source, bell, print, print).begin()


def rings(bell):
    return bell.wait(0.1)


def test_the_bell_rings_for_what_comes_and_for_another_folder_of_this_name(source, bell):
    # When it hears, and for what is there already.
    wait_for(lambda: rings(bell), "that it hears")
    wait_for(lambda: not bell.wait(1), "silence")
    (source / "new" / "deep").mkdir(parents=True)
    wait_for(lambda: rings(bell), "the first ring")
    wait_for(lambda: not bell.wait(1), "silence")
    source.rename(source.with_name("other"))
    wait_for(lambda: rings(bell), "the ring for its going")
    source.mkdir()
    wait_for(lambda: rings(bell), "the ring for its coming")
    wait_for(lambda: not bell.wait(1), "silence")
    (source / "a.txt").write_text("a")
    wait_for(lambda: rings(bell), "the ring of the new folder")


def test_a_name_that_is_not_utf8_does_not_silence_the_bell(source, bell):
    wait_for(lambda: rings(bell), "that it hears")
    wait_for(lambda: not bell.wait(1), "silence")
    (source / os.fsdecode(b"bad\xff.txt")).write_text("b")
    wait_for(lambda: rings(bell), "the first ring")
    wait_for(lambda: not bell.wait(1), "silence")
    (source / "a.txt").write_text("a")
    wait_for(lambda: rings(bell), "the second ring")
    assert bell.silent == ""
