"""The pages of settings and messages, and about the installation, agree with the source."""

import ast
import importlib
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
FOLDERS = ("src", "flows", "tasks", "blocks")
FACTORS = {
    "": 1, "%": 0.01, "KiB": 2**10, "MiB": 2**20, "s": 1, "min": 60, "h": 3600,
}  # fmt: skip
# A message with fewer characters could be a part of any text.
LEAST_CHARACTERS = 15


@cache
def sources():
    """Return the syntax tree of each file of the package."""
    files = [file for name in FOLDERS for file in sorted((ROOT / name).rglob("*.py"))]
    return [ast.parse(file.read_text()) for file in files]


@cache
def texts():
    """Return all texts of the source, with a NUL in the place of each value."""
    found = []
    for node in (node for tree in sources() for node in ast.walk(tree)):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "\0" for part in node.values]
            found.append("".join(parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


def rows_of(page, heading=""):
    """Return the cells of each table row of a page, or of one of its sections."""
    text = (REFERENCE / page).read_text()
    if heading:
        (text,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in rows if row[0] not in ("variable", "limit", "message", "library")]


def variables_on_the_page():
    return {
        name
        for row in rows_of("settings.md", "Environment variables")
        for name in re.findall(r"`([A-Z_]+)`", row[0])
    }


def variables_in_the_source():
    """Return the environment variables that the package reads or sets by their names."""
    found = {name for text in texts() for name in re.findall(r"BATCHMILL_[A-Z_]*[A-Z]", text)}
    for node in (node for tree in sources() for node in ast.walk(tree)):
        # os.environ.get("NAME"), os.environ.setdefault("NAME", ...)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_named = node.args and ast.unparse(node.func.value) == "os.environ"
            found |= {node.args[0]} if is_named else set()
        # os.environ["NAME"]
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
            found.add(node.slice)
        # "NAME" in os.environ
        if isinstance(node, ast.Compare) and "os.environ" in map(ast.unparse, node.comparators):
            found.add(node.left)
    names = {one.value if isinstance(one, ast.Constant) else one for one in found}
    return {name for name in names if isinstance(name, str)}


def test_the_page_has_all_variables_that_the_source_reads():
    found = variables_in_the_source()
    assert {"BATCHMILL_CONFINE", "PREFECT_API_URL", "RAY_AUTH_TOKEN"} <= found
    assert found - variables_on_the_page() == set()


def test_the_source_reads_the_variables_of_batchmill_on_the_page():
    named = {name for name in variables_on_the_page() if name.startswith("BATCHMILL_")}
    assert len(named) >= 6
    assert named - variables_in_the_source() == set()


@pytest.mark.parametrize("row", rows_of("settings.md", "Limits"), ids=lambda row: row[2])
def test_a_limit_on_the_page_is_the_constant_in_the_code(row):
    _, value, constant = row
    module, _, name = constant.strip("`").rpartition(".")
    found = getattr(importlib.import_module(f"batchmill.{module}"), name)
    number, _, unit = value.partition(" ")
    assert float(number.replace(",", "")) * FACTORS[unit] == pytest.approx(found)


def messages():
    rows = [row for row in rows_of("errors.md") if len(row) >= 3]
    return [message for row in rows for message in re.findall(r"`([^`]+)`", row[0])]


@pytest.mark.parametrize("message", messages())
def test_a_message_on_the_page_is_in_the_source(message):
    parts = message.split("...")
    assert sum(map(len, parts)) >= LEAST_CHARACTERS
    # A text of the source that ends before a value may continue on the page.
    pattern = re.compile(".*".join(map(re.escape, parts)), re.DOTALL)
    assert any(pattern.search(text) for text in texts())


def test_the_page_has_many_messages():
    assert len(messages()) >= 30
    assert len(set(messages())) == len(messages())


INSTALL = (ROOT / "docs" / "how-to" / "install.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_page_about_the_installation_has_all_extras_and_their_packages():
    rows = re.findall(r"^\| `(\w+)` \| ([\w, ]+) \|", INSTALL, re.MULTILINE)
    extras = {
        name: sorted(re.match(r"[\w-]+", one)[0] for one in packages)
        for name, packages in PROJECT["optional-dependencies"].items()
        if name not in ("dev", "docs")  # `make setup` installs them.
    }
    assert {name: sorted(brings.lower().split(", ")) for name, brings in rows} == extras


def test_the_page_about_the_installation_has_the_versions_of_python():
    prefix = "Programming Language :: Python :: 3."
    tried = [f"3.{one.removeprefix(prefix)}" for one in PROJECT["classifiers"] if prefix in one]
    assert len(tried) > 1
    assert f"| {PROJECT['requires-python'].removeprefix('>=')} or newer | {', '.join(tried)} |" in (
        INSTALL
    )
