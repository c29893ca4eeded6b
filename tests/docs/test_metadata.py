"""The files about the project agree with the package."""

import re
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


def test_runs_of_deployments_wait_without_slots_of_prefect():
    """Prefect's server forgets the slots of `concurrency_limit` when it restarts."""
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    assert [made["name"] for made in deployments if "concurrency_limit" in made] == []
    # These flows make no runs, or make them wait.
    others = ("verify", "watch", "export", "update", "review")
    writing = [made for made in deployments if not any(one in made["entrypoint"] for one in others)]
    assert len(writing) == 5
    assert all(made.get("parameters", {}).get("run") == {"wait": True} for made in writing)


def test_each_deployment_has_a_name_of_its_own():
    """`prefect deploy -n NAME` registers all deployments of a name."""
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    names = [made["name"] for made in deployments]
    assert len(set(names)) == len(names) == 10


def test_the_documented_deployments_exist():
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    made = {
        made["entrypoint"].split(".")[2].replace("_", "-") + "/" + made["name"]
        for made in deployments
    }
    text = (ROOT / "docs" / "how-to" / "running.md").read_text()
    assert set(re.findall(r"^\| `([a-z-]+/[a-z-]+)` \|", text, re.MULTILINE)) == made


def test_the_changelog_and_documentation_links_name_existing_files():
    base = PROJECT["urls"]["Repository"]
    for name in ("Changelog", "Documentation"):
        path = PROJECT["urls"][name].removeprefix(base).split("/main/")[1]
        assert (ROOT / path).exists()
