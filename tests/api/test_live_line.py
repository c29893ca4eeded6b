"""The line with the progress of a run from Python, outside notebooks."""

import io
import logging
import sys

import pytest
from harness.jobs import job_of, run_job
from prefect import flow
from prefect.logging import get_logger
from prefect.logging.handlers import PrefectConsoleHandler

from batchmill.api.jobs.flow_run import log_level
from batchmill.api.live_line import LiveLine
from batchmill.core.planning.prepare import prepare

SPLIT = "batchmill.steps.words:split"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def follow(words, out):
    """Run a job below a line, and return what the line printed."""
    with LiveLine().follow(prepare(job_of(words, SPLIT, out))):
        run_job(words, SPLIT, out)
    return sys.stderr.getvalue()


def test_a_terminal_shows_one_line_that_is_replaced_in_place(words, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    first, *_, last = follow(words / "manifest.csv", tmp_path / "out").split("\r")[1:]
    assert first == "starting Prefect ...\x1b[K"
    assert last.startswith("4/4 inputs, 0 failed, ")
    assert last.count("\n") == 1
    assert last.endswith("\x1b[K\n")


def test_a_script_whose_messages_go_to_a_file_prints_nothing(words, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert follow(words / "manifest.csv", tmp_path / "out") == ""


def test_a_run_with_nothing_to_execute_has_no_line(words, tmp_path, monkeypatch):
    manifest, out = words / "manifest.csv", tmp_path / "out"
    run_job(manifest, SPLIT, out)
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert follow(manifest, out) == ""


@pytest.fixture
def screen():
    """A handler like Prefect's own on the root logger, and the text that it has printed."""
    handler = PrefectConsoleHandler(stream=io.StringIO())
    logging.getLogger().addHandler(handler)
    yield handler.console.file
    logging.getLogger().removeHandler(handler)


def log():
    get_logger("client").error("of prefect")
    logging.getLogger("batchmill.x").debug("detail")
    logging.getLogger("somewhere").error("of a user")


def test_only_prefects_log_is_hidden_during_a_run(screen):
    with log_level(verbose=False):
        log()
    assert "of prefect" not in screen.getvalue()
    assert "of a user" in screen.getvalue()
    log()
    assert "of prefect" in screen.getvalue()
    assert "detail" not in screen.getvalue()


def test_only_a_warning_of_batchmill_is_shown_on_the_command_line(screen):
    consoles = [one for one in logging.getLogger().handlers if hasattr(one, "console")]
    (console,) = (one for one in consoles if one.console.file is screen)
    console.setLevel(logging.CRITICAL)
    with log_level(verbose=False):
        log()
        logging.getLogger("batchmill.x").warning("of batchmill")
    assert "of batchmill" in screen.getvalue()
    assert "of prefect" not in screen.getvalue()
    assert "of a user" not in screen.getvalue()
    assert console.level == logging.CRITICAL


def test_a_verbose_run_shows_prefects_log_and_the_details(screen):
    with log_level(verbose=True):
        log()
    assert {"of prefect", "detail"} <= set(screen.getvalue().replace("|", "\n").split("\n"))


@pytest.mark.usefixtures("used_server")
def test_the_log_of_a_users_own_flow_stays_visible(screen):
    @flow
    def own():
        with log_level(verbose=False):
            log()

    own()
    assert "of prefect" in screen.getvalue()
