"""Credentials in a step's error do not reach the ledger, the tables or the report."""

import fsspec
import pytest
from harness.jobs import run_job

from batchmill.core.security.credentials import Access, access_to, granted
from batchmill.core.security.redaction import without_secrets, without_secrets_in_source
from batchmill.core.user_step.load import load_step
from batchmill.runs.inputs.single_input import run_single_input

STEP = """
import os, sys

def step(source):
    secrets = os.environ["LAB_API_TOKEN"], "of-the-store", "https://corp:sesame-1@host/a?sig=sesame-2"
    print("log:", *secrets)
    if source.stem == "crash":
        os.abort()
    raise ValueError(f"error: {secrets}")
"""
SECRETS = ("sesame-0", "of-the-store", "sesame-1", "sesame-2")
ENDPOINT = ("server: sesame-3, sesame-4", "server: ***, ***")


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A step whose errors contain credentials: of the environment, of a store, and of a URL."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAB_API_TOKEN", "sesame-0")
    (tmp_path / "leaking.py").write_text(STEP)
    (tmp_path / "in").mkdir()
    for name in ("crash", "error"):
        (tmp_path / "in" / name).write_text("x")
    with access_to([Access(url="s3://lab", options={"secret": "of-the-store"})]):
        yield tmp_path


def test_no_file_of_a_dataset_contains_a_credential(lab):
    seen = []
    run_job("in", "leaking:step", "out", seen=seen)
    assert {outcome.kind for outcome in seen} == {"crashed", "failed"}
    texts = [f"{o.message}{o.traceback}{o.log}" for o in seen]
    assert all("log: *** ***" in text for text in texts)
    assert [text for text in texts for secret in SECRETS if secret in text] == []
    for path in (lab / "out").rglob("*"):
        found = path.read_bytes() if path.is_file() else b""
        assert not any(secret.encode() in found for secret in SECRETS), path


def test_try_shows_no_credential(lab):
    step = load_step("leaking:step", {}, search=str(lab))
    outcome = run_single_input(step, "in/error", {}, None)
    assert outcome.message.startswith("error: ('***', '***', 'https://***@host/a?***")
    assert not any(secret in outcome.traceback for secret in SECRETS)


@pytest.mark.parametrize(
    ("options", "text", "shown"),
    [
        ({"key": "lab-42"}, "sesame and lab-42 of room-1", "*** and *** of room-1"),
        ({"key": "short", "profile": "colleague"}, *["a short text of colleague"] * 2),
        ({"key": "sesame-3", "token": "sesame-3-and-more"}, "sesame-3-and-more", "***"),
        ({"nested": {"headers": ["sesame-3", ("sesame-4",)]}}, "sesame-3 sesame-4", "*** ***"),
        ({"any": "A=1;AccountKey=sesame-3;B=2"}, "key sesame-3", "key ***"),
        ({"endpoint_url": "http://user:sesame-3@server/sesame-4"}, *ENDPOINT),
        ({"endpoint_url": "http://server/sesame-4"}, "server: sesame-4", "server: ***"),
        ({}, "AccountKey=sesame-1, sesame-2, 1234567", "AccountKey=***, ***, 1234567"),
    ],
)
def test_only_values_that_may_be_secret_are_hidden(monkeypatch, options, text, shown):
    monkeypatch.setenv("LAB_PLACE", "room-1")
    monkeypatch.setenv("LAB_TOKEN", "sesame")
    monkeypatch.setenv("LAB_CONNECTION_STRING", "A=1;AccountKey=sesame-1;B=2")
    monkeypatch.setitem(fsspec.config.conf, "s3", {"secret": "sesame-2", "number_key": 1234567})
    with access_to([Access(url="s3://lab", options=options)]):
        assert "sesame" not in repr(granted())
        assert without_secrets(text) == shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"$schema":"http://json-schema.org/schema#","limit":3}', None),
        ('API = "https://host/words?format=json"', None),
        ('f"https://host/a?token={token}", "https://host/b?token="', None),
        ("url = f'postgresql://{user}:{password}@host/a'", None),
        ('a = "https://host/a:b",x@y', None),
        ("https://host/a?size=2,5\n", None),
        ('("https://user:sesame@host/a", 5)', '("https://***host/a", 5)'),
        ("https://host/a?sig=sesame,5\n", "https://***host/a,5\n"),
        ('KEY = "sesame"', 'KEY = "***"'),
    ],
)
def test_source_code_and_data_stay_valid_without_secrets(monkeypatch, text, expected):
    monkeypatch.setenv("LAB_TOKEN", "sesame")
    assert without_secrets_in_source(text) == (expected or text)
