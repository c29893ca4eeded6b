"""docs/pictures/make.py draws what it recorded, and finds the pictures that are older."""

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pictures():
    spec = spec_from_file_location("pictures", ROOT / "docs" / "pictures" / "make.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_picture_is_older_if_the_code_that_it_shows_has_changed(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "ROOT", tmp_path)
    monkeypatch.setattr(pictures, "MADE", tmp_path / "made.json")
    monkeypatch.setattr(pictures, "SHOWN", {"page.png": ["*.html"], "run.png": ["*.py"]})
    (tmp_path / "page.html").write_text("before")
    assert pictures.older_than_the_code() == ["page.png", "run.png"]
    digests = {name: pictures.digest_of(name) for name in pictures.SHOWN}
    (tmp_path / "made.json").write_text(json.dumps(digests))
    assert pictures.older_than_the_code() == []
    (tmp_path / "page.html").write_text("after")
    assert pictures.older_than_the_code() == ["page.png"]


def test_each_picture_exists_and_names_code_that_exists(pictures):
    folder = ROOT / "docs" / "pictures"
    files = {path.name for path in folder.iterdir() if path.suffix in (".png", ".svg")}
    assert files == set(pictures.SHOWN)
    for patterns in pictures.SHOWN.values():
        assert all(list(ROOT.glob(pattern)) for pattern in patterns)


def test_the_recording_is_valid_and_shows_each_line(pictures):
    lines = [pictures.Line("$ cat <a> & b", 0.5, is_command=True), pictures.Line("  two", 1.25)]
    texts = [text for text in ET.fromstring(pictures.drawn(lines)).iter() if "text" in text.tag]
    assert [text.text for text in texts] == ["$ cat <a> & b", "  two"]
    assert [text.get("style") for text in texts] == [
        "animation-delay:0.50s", "animation-delay:1.25s",
    ]  # fmt: skip
