"""Whether a Prefect API may be configured, told without Prefect."""

import pytest
from batchmill.flows.services.settings_files import may_have_server


@pytest.fixture(autouse=True)
def _nowhere(tmp_path, monkeypatch):
    for name in ("PREFECT_API_URL", "PREFECT_PROFILE", "PREFECT_PROFILES_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    (tmp_path / "prefect").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def test_nothing_names_one(tmp_path):
    assert not may_have_server()
    (tmp_path / "here" / "pyproject.toml").write_text("[project]\nname = 'mine'\n")
    (tmp_path / "here" / ".env").write_text("TOKEN=1\n")
    assert not may_have_server()


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("prefect/profiles.toml", '[profiles.a]\nPREFECT_API_URL = "http://h/api"\n'),
        ("here/prefect.toml", '[api]\nurl = "http://h/api"\n'),
        ("here/pyproject.toml", '[tool.prefect.api]\nurl = "http://h/api"\n'),
        ("here/.env", "PREFECT_API_URL=http://h/api\n"),
        ("here/.env", "PREFECT_PROFILES_PATH=elsewhere.toml\n"),
        ("here/prefect.toml", 'profiles_path = "elsewhere.toml"\n'),
    ],
)
def test_each_place_that_prefect_reads(tmp_path, place, text):
    (tmp_path / place).write_text(text)
    assert may_have_server()


@pytest.mark.parametrize("name", ["PREFECT_API_URL", "PREFECT_PROFILE"])
def test_the_environment(monkeypatch, name):
    monkeypatch.setenv(name, "http://h/api")
    assert may_have_server()
