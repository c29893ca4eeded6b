"""The commands in README and docs run as written, and their links work."""

import re
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ALL_PAGES = [
    *PAGES,
    *(
        ROOT / name
        for name in ("ARCHITECTURE.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md")
    ),
    *sorted((ROOT / "examples").glob("*/README.md")),
]

CLASSIFIER = ROOT / "docs" / "tutorials" / "classifier.md"

# The tests run the blocks `sh` of a page, then its blocks `python run`, joined to one script.
# Commands that need a cluster are in blocks `bash`, which tests/system/cluster runs.
# These commands are skipped: they set up the environment, or test_deployment runs them.
ELSEWHERE = ("make ", "pip install", "prefect ")


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def commands_of(page):
    return [block for block in blocks(page, "sh") if not block.startswith(ELSEWHERE)]


@pytest.mark.long
@pytest.mark.end_to_end
def test_the_classifier_of_the_tutorial_distinguishes_birds(shell, work):
    run_commands(CLASSIFIER, shell, work)
    table = pd.read_parquet(work / "predictions" / "metadata.parquet")
    assert table.groupby("partition")["bird"].nunique().to_dict() == {
        "train": 9, "validation": 3, "test": 3,
    }  # fmt: skip
    test = table[table["partition"] == "test"]
    # Guessing would be right for a third of the birds.
    assert (test["predicted"] == test["label"]).mean() > 0.8


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    "page",
    [
        page if page.name == "README.md" else pytest.param(page, marks=pytest.mark.long)
        for page in sorted({*PAGES} - {CLASSIFIER})
    ],
    ids=lambda page: page.name,
)
def test_the_commands_of_a_page_run_one_after_the_other(page, shell, work):
    run_commands(page, shell, work)


def run_commands(page, shell, work):
    """Run a page's commands, then its Python, in a folder with the examples."""
    shutil.copytree(ROOT / "examples", work / "examples")
    for block in commands_of(page):
        done = shell.run("bash", "-euc", block)
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    script = "\n".join(blocks(page, "python run"))
    if script:
        done = shell.run(sys.executable, "-c", script)
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"


def test_the_readme_has_commands_to_run():
    assert sum(block.count("batchmill ") for block in commands_of(PAGES[0])) >= 6


def test_the_page_about_training_has_python_to_run():
    script = "\n".join(blocks(ROOT / "docs" / "how-to" / "training.md", "python run"))
    for name in ("open_dataset", "pad_collate", "partition", "frame"):
        assert name in script


def test_the_readmes_step_is_the_same_as_the_example():
    (step,) = (block for block in blocks(ROOT / "README.md", "python") if "def count" in block)
    assert step == (ROOT / "examples" / "words" / "counting.py").read_text()


def test_the_test_in_the_page_is_the_same_as_the_example():
    page = ROOT / "docs" / "how-to" / "own-steps.md"
    (test,) = (block for block in blocks(page, "python") if "check_step" in block)
    assert test == (ROOT / "examples" / "words" / "test_counting.py").read_text()


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_anchors_exist(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]*)\)", page.read_text()):
        other = page if not target else page.parent / target
        headings = re.findall(r"^#+ (.*)$", other.read_text(), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}
