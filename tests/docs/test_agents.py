"""The skill for agents works as written, and llms.txt lists all pages."""

import json
import re
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import yaml
from harness.live import clean_environment, made_once

ROOT = Path(__file__).parents[2]
SKILL = ROOT / "docs" / "agents" / "SKILL.md"
SITE = ROOT / "docs" / "site"
# Two runs and eight other commands, on a busy machine.
SECONDS = 600
# Saves the arguments, the exit code and the standard output of each command.
SAVE = """
number=100
batchmill() {
    local code=0
    number=$((number + 1))
    command batchmill "$@" >"$SAVED/$number.out" || code=$?
    echo "$code $*" >"$SAVED/$number.command"
    return $code
}
"""


@pytest.fixture
def commands(shell, work, tmp_path):
    """Run the blocks of the skill in one shell. Return each command, its exit code and its JSON."""
    shutil.copytree(ROOT / "examples" / "words", work / "examples" / "words")
    saved = tmp_path / "saved"
    saved.mkdir()
    shell.environment["SAVED"] = str(saved)
    blocks = re.findall(r"```sh\n(.*?)```", SKILL.read_text(), re.DOTALL)
    assert len(blocks) >= 7
    done = shell.run("bash", "-c", "\n".join(["set -eu", SAVE, *blocks]), timeout=SECONDS)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    found = []
    for file in sorted(saved.glob("*.command")):
        code, name, *_ = file.read_text().split()
        found.append((name, int(code), json.loads(file.with_suffix(".out").read_text())))
    return found


def keys_of(row):
    return set(re.findall(r"`(\w+)`", row))


@pytest.mark.timeout(SECONDS)
def test_the_commands_of_the_skill_find_fix_and_prove(commands):
    assert [(name, code) for name, code, _ in commands] == [
        ("try", 0),
        ("plan", 0),
        ("run", 1),
        ("status", 0),
        ("failures", 0),
        ("try", 1),
        ("try", 0),
        ("run", 0),
        ("verify", 0),
        ("verify", 0),
    ]
    runs = [printed["outcomes"] for name, _, printed in commands if name == "run"]
    assert runs == [{"ok": 4, "failed": 1}, {"ok": 5}]
    (failures,) = (printed for name, _, printed in commands if name == "failures")
    assert [one["error"] for one in failures] == ["ZeroDivisionError"]
    *_, compared, proof = (printed for _, _, printed in commands)
    assert compared == []
    assert (proof["results"], proof["sample"], proof["different"]) == (5, 5, 0)

    table = re.findall(
        r"^\| (`(?:try|plan|run|failures)`[^|]*) \| (.*) \|$", SKILL.read_text(), re.M
    )
    assert len(table) == 4
    for names, keys in table:
        for name, _, printed in commands:
            if name in keys_of(names):
                for one in printed if isinstance(printed, list) else [printed]:
                    assert keys_of(keys) <= set(one), name


def test_the_head_of_the_skill_has_its_name_and_description():
    _, head, text = SKILL.read_text().split("---\n", 2)
    found = yaml.safe_load(head)
    assert set(found) == {"name", "description"}
    assert re.fullmatch("[a-z0-9-]{1,64}", found["name"])
    assert 50 < len(found["description"]) <= 1024
    assert text.count("\n") < 120


def test_the_skill_needs_no_other_file():
    """An agent has a copy of the skill in another folder."""
    for target in re.findall(r"\]\(([^)]*)\)", SKILL.read_text()):
        name = re.fullmatch("https://github.com/batchmill/batchmill/blob/main/(.*)", target)[1]
        assert (ROOT / name).exists(), target


def load(name):
    """Return a module of the site's builder."""
    spec = spec_from_file_location(name, SITE / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pages_in(text):
    """Return the page of each line of llms.txt. Its lines follow the format of llmstxt.org."""
    title, summary, *rest = [line for line in text.splitlines() if line]
    assert title == "# batchmill"
    assert summary.startswith("> batchmill is a Prefect plugin. It runs one Python function")
    pages = []
    for line in rest:
        if not line.startswith("## "):
            page = re.fullmatch(r"- \[[^\]]+\]\(([\w./-]+\.md)\): (\S+ ){2,}\S+[.:]", line)
            assert page, line
            pages.append(page[1])
    return pages


def test_llms_txt_lists_each_page_of_the_navigation_once(tmp_path):
    pages = load("pages")
    places = pages.lay_out(tmp_path)
    navigation = yaml.safe_load((SITE / "mkdocs.yml").read_text())["nav"]
    # The site generates these pages from the code, which takes seconds.
    generated = set(pages._named(navigation)) - set(places)
    for name in generated:
        (tmp_path / name).write_text(f"# {name}\n\nA generated page.\n")
    listed = pages_in(load("llms").llms_txt(navigation, tmp_path))
    single = [place for place in places if re.match(r"decisions/\d", place)]
    assert len(single) > 30
    assert sorted(listed) == sorted({*places, *generated} - {*single})


def test_the_description_of_a_page_is_its_first_sentence(tmp_path):
    (tmp_path / "index.md").write_text("# Home\n\nAll of\nit. More.\n")
    (tmp_path / "a.md").write_text(
        "---\nname: a\n---\n\n# A\n\n```sh\nls\n```\n\nRead [this 0.5](b.md) one. And more.\n"
    )
    navigation = [{"Home": "index.md"}, {"Guides": [{"Write": [{"One": "a.md"}]}]}]
    assert load("llms").llms_txt(navigation, tmp_path) == (
        "# batchmill\n\n> All of it. More.\n\n## Home\n\n- [Home](index.md): All of it.\n\n"
        "## Guides\n\n- [One](a.md): Read this 0.5 one.\n"
    )


@pytest.mark.end_to_end
def test_the_site_has_llms_txt_and_its_pages(tmp_path_factory):
    def make(folder):
        """Build the site, as test_site does."""
        command = [sys.executable, SITE / "build.py", folder / "built"]
        environment = clean_environment(tmp_path_factory.mktemp("home"))
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    site = made_once("site", make) / "built"
    pages = pages_in((site / "llms.txt").read_text())
    assert "reference/commands.md" in pages
    for page in pages:
        assert (site / page).read_text().strip()
        assert (site / page).with_suffix(".html").exists() or page.endswith("README.md")
