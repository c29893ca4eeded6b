"""The files about the project agree with the package."""

import tomllib
from pathlib import Path

import yaml

from batchmill.version import VERSION

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())


def test_the_citation_agrees_with_the_package():
    assert CITATION["version"] == VERSION
    assert CITATION["title"] == PROJECT["name"]
    assert CITATION["abstract"] == PROJECT["description"]
    assert CITATION["license"] == PROJECT["license"]
    assert CITATION["authors"] == PROJECT["authors"]
    assert CITATION["repository-code"] == PROJECT["urls"]["Repository"]


def test_the_changelog_and_documentation_links_name_existing_files():
    base = PROJECT["urls"]["Repository"]
    for name in ("Changelog", "Documentation"):
        path = PROJECT["urls"][name].removeprefix(base).split("/main/")[1]
        assert (ROOT / path).exists()
