"""Generate the page that says which test file shows which behaviour."""

import ast
import re
from itertools import groupby
from pathlib import Path

from pages import ROOT

_INTRODUCTION = (
    "The first line of each file of tests. [Contributing](../CONTRIBUTING.md) explains how to run "
    "them. Generated from the code."
)


def tests_page() -> str:
    """Return the page of the tests: for each folder, the files and what they show.

    Raises:
        ValueError: A file of tests does not begin with a sentence.
    """
    files = sorted((ROOT / "tests").rglob("test_*.py"), key=lambda file: (file.parent, file.name))
    pieces = ["# Tests", _INTRODUCTION]
    for folder, inside in groupby(files, lambda file: file.parent):
        pieces.append(f"## {folder.relative_to(ROOT)}")
        rows = [f"| {_shown_by(file)} | `{file.name}` |" for file in inside]
        pieces.append("\n".join(["| behaviour | file |", "|---|---|", *rows]))
    return "\n\n".join(pieces) + "\n"


def _shown_by(file: Path) -> str:
    """Return what a file of tests shows: the first sentences of its docstring."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
    if not text:
        raise ValueError(f"{file}: the file does not say what it shows. Begin it with a sentence.")
    shown = re.sub(r"^Test (that )?", "", " ".join(text.partition("\n\n")[0].split()))
    return (shown[0].upper() + shown[1:]).replace("|", "\\|")
