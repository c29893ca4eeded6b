"""The commands in README and docs run as written, and their links work."""

import inspect
import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest

import batchmill
from batchmill.cli.main import make_app
from batchmill.core.options.job_options import ConfinementOptions

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

# The tests run the blocks `sh` of a page in one shell, then its blocks `python run` as one script.
# Commands that need a cluster, a bucket, a server or failed inputs are in blocks `bash`. Other
# tests run most of them.
# These commands are skipped: they set up the environment, or test_deployment runs them.
ELSEWHERE = ("make ", "pip install", "prefect ")
# The files of a clone that commands use, or that pytest reads.
CLONE = ("examples", "tests", "pyproject.toml")
PAGE_SECONDS = 600


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def commands_of(page):
    return [block for block in blocks(page, "sh") if not block.startswith(ELSEWHERE)]


def reading_order():
    """Return the README, then all pages to which docs/index.md links, in its order."""
    index = ROOT / "docs" / "index.md"
    links = re.findall(r"\]\(([^)#:]+\.md)\)", index.read_text())
    return [ROOT / "README.md", *((index.parent / link).resolve() for link in links)]


@pytest.mark.end_to_end
def test_a_reader_can_run_all_pages_one_after_the_other_in_one_clone(shell, work, is_long):
    """The short version runs README alone."""
    for name in CLONE:
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, work / name)
    for page in reading_order() if is_long else [ROOT / "README.md"]:
        run_commands(page, shell)
    if is_long:
        check_predictions(work / "predictions")


def run_commands(page, shell):
    """Run a page's commands, then its Python, in one shell."""
    start = 'start="$PWD"'
    # The next page starts in the same folder.
    end = '[ "$PWD" = "$start" ] || { echo "The page ends in $PWD." >&2; exit 1; }'
    lines = ["set -eux", start, *commands_of(page), end]
    done = shell.run("bash", "-c", "\n".join(lines), timeout=PAGE_SECONDS)
    assert done.returncode == 0, f"{page}\n{done.stdout}\n{done.stderr}"
    script = "\n".join(blocks(page, "python run"))
    if script:
        done = shell.run(sys.executable, "-c", script, timeout=PAGE_SECONDS)
        assert done.returncode == 0, f"{page}\n{script}\n{done.stdout}\n{done.stderr}"


def check_predictions(predictions):
    """Check that the classifier of the tutorial distinguishes birds."""
    table = pd.read_parquet(predictions / "metadata.parquet")
    assert table.groupby("partition")["bird"].nunique().to_dict() == {
        "train": 9, "validation": 3, "test": 3,
    }  # fmt: skip
    test = table[table["partition"] == "test"]
    # Guessing would be right for a third of the birds.
    assert (test["predicted"] == test["label"]).mean() > 0.8


def test_the_index_links_to_all_pages_with_commands():
    with_commands = {page for page in PAGES if commands_of(page) or blocks(page, "python run")}
    assert with_commands <= {*reading_order()}


def test_each_dataset_of_the_pages_has_one_job():
    """A reader runs several pages in one folder."""
    jobs = {}
    for page in PAGES:
        for block in blocks(page, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                job = job_of(shlex.split(line, comments=True) if "batchmill" in line else [])
                if job:
                    jobs.setdefault(job[0], {}).setdefault(job[1], page.name)
    assert len(jobs) > 10
    assert {name: found for name, found in jobs.items() if len(found) > 1} == {}


def job_of(words):
    """Return the dataset of a command `run` or `infer`, and what determines its content."""
    if words[:2] not in (["batchmill", "run"], ["batchmill", "infer"]):
        return None
    values = {"manifest": words[2]}
    for name, value in pairwise(words):
        if name in ("--output", "-o", "--step", "--model", "--partition"):
            values[name] = value
        elif name in ("--param", "--pattern"):
            values[name] = values.get(name, "") + " " + value
    dataset = values.pop("--output", None) or values.pop("-o", None)
    return dataset and (dataset.removeprefix("../../"), str(values))


def test_the_readme_has_commands_to_run():
    assert sum(block.count("batchmill ") for block in commands_of(PAGES[0])) >= 2


def test_the_page_about_training_has_python_to_run():
    script = "\n".join(blocks(ROOT / "docs" / "how-to" / "training.md", "python run"))
    for name in ("open_dataset", "pad_collate", "partition", "frame"):
        assert name in script


def test_the_page_about_flows_has_python_to_run():
    script = "\n".join(blocks(ROOT / "docs" / "how-to" / "prefect-flow.md", "python run"))
    for name in ("@flow", "@task", "result.counts", "result.metadata", "result.failures"):
        assert name in script


def differences():
    """Return the options that no argument has, the arguments without option, and the commands."""
    options, arguments, commands = set(), set(), set()
    app = make_app()
    for command in app:
        call = getattr(batchmill, {"try": "try_one"}.get(command, command), None)
        if command.startswith("-"):
            continue
        if call is None:
            commands.add(command)
            continue
        parsed = [one for one in app[command].assemble_argument_collection() if one.parse]
        # The command of a flag and of a list also has names that set it to its default.
        given = {
            name.removeprefix("--").replace("-", "_")
            for one in parsed
            for name in one.names
            if name.startswith("--") and not name.startswith(("--no-", "--empty-"))
        }
        positional = {one.field_info.name for one in parsed} - given
        names = set(inspect.signature(call).parameters)
        options |= {"--" + name.replace("_", "-") for name in given - names}
        # A positional argument of a command has no name.
        arguments |= names - given - positional
    return options, arguments, commands


def test_the_page_about_python_names_the_options_that_differ():
    page = (ROOT / "docs" / "how-to" / "python.md").read_text()
    section = page.partition("## Options that differ\n")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| ")]
    named = set(re.findall(r"`(?:\w+ )?(--[a-z-]+)", "".join(row[1] for row in rows)))
    words = set(re.findall(r"\w+", "".join(row[2] for row in rows) + section.rpartition("|")[2]))
    options, arguments, commands = differences()
    # These have the same name and another form.
    assert named - {"--params", "--expect", "--row"} == options
    # `batchmill infer` leaves out the options of confinement, because a model rejects them.
    assert (arguments - {*ConfinementOptions.model_fields}) | commands <= words


def test_the_short_examples_of_steps_print_rows_and_the_log():
    script = "\n".join(blocks(ROOT / "docs" / "how-to" / "own-steps.md", "python run"))
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.splitlines() == [
        "[{'rate': 22050, 'seconds': 7.272562358276644}]",
        "[{'words': 1}]",
        "[{'words': 1}]",
        "[{'is_long': False, 'title': 'Noun'}]",
        "[{'bytes': 116}]",
        "ValueError",
    ], done.stderr
    assert "a.txt has 6 bytes" in done.stderr


def test_the_readmes_step_is_the_same_as_the_example():
    (step,) = (block for block in blocks(ROOT / "README.md", "python") if "def measure" in block)
    assert step == (ROOT / "examples" / "recordings" / "measuring.py").read_text()


def test_the_test_in_the_page_is_the_same_as_the_example():
    page = ROOT / "docs" / "how-to" / "own-steps.md"
    (test,) = (block for block in blocks(page, "python") if "check_step" in block)
    assert test == (ROOT / "examples" / "words" / "test_counting.py").read_text()


def test_the_step_in_the_page_about_services_is_the_same_as_the_example():
    page = ROOT / "docs" / "how-to" / "async-steps.md"
    (step,) = (block for block in blocks(page, "python") if "class Summarise" in block)
    assert step == (ROOT / "examples" / "summaries" / "summarise.py").read_text()


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_anchors_exist(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]*)\)", page.read_text()):
        other = page if not target else page.parent / target
        headings = re.findall(r"^#+ (.*)$", other.read_text(), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}
