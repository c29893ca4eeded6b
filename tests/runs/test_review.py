"""A review shows on a sample what a change of the step does. Nothing in the dataset changes."""

import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from harness.comparison import contents
from harness.jobs import run_job
from harness.libraries import Site

import batchmill
from batchmill import OptionError
from batchmill.cli.main import main
from batchmill.datasets.publishing.report.file_comparison import FileComparison

pytestmark = pytest.mark.slow

# LIBRARY is another name in each test.
STEP = """
import LIBRARY as planted
LIMIT = 30

def helper(text):
    return text.upper()

def step(source, out, *, times=1, least=0, unused=0):
    "Repeat a text."
    text = helper(source.read_text())
    if len(text) < least or "BAD" in text:
        raise ValueError(f"{text} is bad")
    (out / "a.txt").write_text(text * times + planted.END)
    return {"output": "a.txt", "letters": min(len(text) * times, LIMIT), "mean": 0.5}
"""
# By name: a change of the step's text, or params, or the text of the library; and the columns and
# files that differ.
EFFECTS = {
    "times 2": ({"times": 2}, {"a.txt", "letters"}),
    "times 3": ({"times": 3}, {"a.txt", "letters"}),
    "least 2": ({"least": 2}, "failures"),
    "a limit": (("LIMIT = 30", "LIMIT = 3"), {"letters"}),
    "a helper": (("text.upper()", "text.lower()"), {"a.txt"}),
    "a fix": (('or "BAD" in text', ""), "vanished"),
    "another error": (("len(text) < least", "len(text) > 3"), "failures"),
    "a column": (('"mean": 0.5', '"median": 0.5'), {"mean", "median"}),
    "a value": (("0.5", "0.6"), {"mean"}),
    "a type": (("0.5", '"0.5"'), {"mean"}),
    "a name": (('"a.txt"', '"b.txt"'), {"a.txt", "b.txt", "output"}),
    "an end": (("planted.END", "planted.END + '.'"), {"a.txt"}),
    "more rows": (("return {", "yield {'letters': 0}\n    yield {"), "rows"),
    "one value in one input": (('"mean": 0.5', '"mean": 0.5 + (text == "C")'), {"mean"}),
    "no file": (("a.txt", "c.txt"), {"a.txt", "c.txt", "output"}),
    "a later limit": (("LIMIT)", "4)"), {"letters"}),
    "reversed": (("text * times", "text[::-1] * times"), {"a.txt"}),
    "a library": ("END = '!'", {"a.txt"}),
    "a library and params": ("END = '?'", {"a.txt"}),
}
NO_EFFECTS = {
    "nothing": {},
    "an unused param": {"unused": 1},
    "the same value": {"times": 1},
    "a docstring": ("Repeat a text.", "Repeat it."),
    "a comment": ("LIMIT = 30", "LIMIT = 30  # letters"),
    "a local name": ("text = helper", "word = text = helper"),
    "a limit that nothing reaches": ("LIMIT = 30", "LIMIT = 31"),
    "an unused function": ("def helper", "def other(): pass\n\ndef helper"),
    "a better helper": ("text.upper()", "''.join(letter.upper() for letter in text)"),
    "a library without effect": "END = ''",
}
TEXTS = ["a", "bb", "c", "dddd", "bad", "ee", "ffffff", "gg", "h", "iii", "jk", "bad luck"]


class Planted(Site):
    """A folder with a step, and a library that the step imports. Their names are unique."""

    def __init__(self, folder):
        super().__init__(folder)
        self.library, self.module = (f"{name}_{abs(hash(folder))}" for name in ("planted", "own"))
        self.step = f"{self.module}:step"
        self.restore()

    def restore(self):
        """Write the step and the library before all changes."""
        self.write(STEP)
        self.plant("1.0", "END = ''")

    def write(self, text):
        """Write the module of the step. The next review imports it again."""
        Path(f"{self.module}.py").write_text(text.replace("LIBRARY", self.library))
        for name in (self.module, self.library):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()

    def plant(self, version, text):
        """Install a version of the library."""
        self.install(self.library, version, {f"{self.library}.py": text})
        self.write(Path(f"{self.module}.py").read_text())


@pytest.fixture
def cold_planted(tmp_path, monkeypatch):
    """A folder with a dataset of a step that imports a library. Reviews start a process each."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    site = Planted(tmp_path)
    monkeypatch.syspath_prepend(str(site.folder))
    Path("in").mkdir()
    for number, text in enumerate(TEXTS):
        Path(f"in/{number:02}.txt").write_text(text)
    run_job("in", site.step, "out")
    return site


@pytest.fixture
def planted(cold_planted, warm_process):
    """A folder with a dataset. The step and the library can be changed once before all reviews."""
    return cold_planted


def reviewed(site, change, **options):
    """Make a change, and review it."""
    params = change if isinstance(change, dict) else {}
    if isinstance(change, tuple):
        assert change[0] in STEP
        site.write(STEP.replace(*change))
    elif isinstance(change, str):
        site.plant("2.0", change)
    return batchmill.review("out", params=params, **options)


def test_each_verdict_is_right(cold_planted, sample):
    before = contents("out")
    for name in sample(list(EFFECTS), 2):
        change, expected = EFFECTS[name]
        found = reviewed(cold_planted, change)
        assert not found.is_equal, name
        assert found.sample == found.inputs == len(TEXTS)
        if expected == "failures":
            assert found.appeared, name
        elif expected == "vanished":
            assert [*found.vanished] == ["04.txt", "11.txt"], name
        elif expected != "rows":
            assert {*found.counts} == expected, name
        cold_planted.restore()
    for name in sample(list(NO_EFFECTS), 1):
        found = reviewed(cold_planted, NO_EFFECTS[name])
        assert found.is_equal, (name, found.lines())
        cold_planted.restore()
    assert contents("out") == before


def test_the_command_says_what_differs(planted, capsys):
    with pytest.raises(SystemExit) as end:
        main(["review", "out", "--param", "times=2", "--seed", "5", "--markdown", "r.md"])
    assert end.value.code == 3
    shown = capsys.readouterr().out
    assert "Review of " in shown
    assert "12 of 12 inputs executed (seed 5)\n  the parameter times changed from 1 to 2\n" in shown
    assert "10 of 10 results differ.\n  a.txt: differs in 10\n  letters: differs in 10\n" in shown
    assert "  letters: 2.4 (1 to 6) -> 4.8 (2 to 12)\n" in shown
    text = Path("r.md").read_text()
    assert text.startswith("### Review of ")
    assert "\n**10 of 10 results differ.**\n\n- `a.txt: differs in 10`\n" in text
    with pytest.raises(SystemExit) as end:
        main(["review", "out", "--json"])
    assert not end.value.code
    assert json.loads(capsys.readouterr().out)["different"] == 0


def test_a_param_is_read_as_the_recorded_step_takes_it(planted, monkeypatch, capsys):
    Path("tagged.py").write_text("def step(source, *, tag: str):\n    return {'tag': tag}\n")
    run_job("in", "tagged:step", "tags", tag="1.10")
    dataset = Path("tags").absolute()
    Path("other").mkdir()
    monkeypatch.chdir("other")
    Path("params.json").write_text("{}")
    for step in ([], ["--step", "tagged:step"]):
        with pytest.raises(SystemExit) as ended:
            main(["review", str(dataset), *step, "--param", "tag=1.10", "--params", "params.json"])
        assert (ended.value.code, "No result differs." in capsys.readouterr().out) == (0, True)


def test_the_page_shows_the_most_changed_results(planted, capsys):
    """One input changes much more than the others."""
    change = ("text * times", "(text * 3 + ' <b>' if text == 'II' else text) * times + ' .'")
    Path("in/09.txt").write_text("ii")
    run_job("in", planted.step, "out")
    found = reviewed(planted, change)
    first = found.most_changed[0]
    assert first.input == "09.txt"
    page = found.html()
    assert '<i class="new">+IIIIII &lt;b&gt; .</i>' in page
    assert "://" not in page
    assert repr(found) == "\n".join(found.lines())
    large = FileComparison(0.5, "", pictures=["data:image/jpeg;base64," + "A" * 2**19] * 3)
    many = [replace(first, input=str(number), files={"a.png": large}) for number in range(12)]
    page = replace(found, most_changed=many).html()
    assert 2**20 < len(page) < 4 * 2**20
    with pytest.raises(SystemExit):
        main(["review", "out", "-o", "r.html", "--json"])
    assert json.loads(capsys.readouterr().out)["most_changed"] == []
    assert "10 of 10 results differ." in Path("r.html").read_text()


def test_a_sample_has_a_bound_for_all(planted):
    found = reviewed(planted, {"times": 2}, sample=4, seed=1)
    assert (found.sample, found.inputs) == (4, 12)
    assert " % of all at 95 % confidence." in found.lines()[2]
    found = reviewed(planted, {}, sample=4, seed=1)
    assert "so under " in found.lines()[1]


def test_changed_inputs_are_left_out(planted):
    Path("in/00.txt").write_text("other")
    Path("in/new.txt").write_text("new")
    assert reviewed(planted, {}).inputs == len(TEXTS) - 1


def test_a_library_that_differs_is_named(planted):
    found = reviewed(planted, "END = '!'")
    assert found.changes == [f"libraries: {planted.library} 1.0 -> 2.0 (10 results of the old one)"]


def test_columns_of_any_numbers_have_a_distribution(planted):
    """Times in nanoseconds, and numbers that no float holds."""
    old = STEP.replace('"mean": 0.5', '"at": 1764000000000000000 + len(text), "large": 10**400')
    planted.write(old)
    run_job("in", planted.step, "out")
    new = old.replace("+ len(text)", "+ len(text) + 1").replace("10**400", "10**401")
    planted.write(new)
    found = batchmill.review("out")
    assert {*found.counts} == {"at", "large"}
    assert {one.name for one in found.columns} == {"at", "large"}
    assert f"{10**401} 10" in found.html()


def test_another_python_executes_the_sample(planted, tmp_path):
    """Its environment has another version of the library."""
    other = Site(tmp_path / "other")
    other.install(planted.library, "2.0", {f"{planted.library}.py": "END = '?'"})
    python = tmp_path / "other" / "python"
    python.write_text(
        f"""#!/bin/sh\nPYTHONPATH={tmp_path}:{other.folder} exec "{sys.executable}" "$@"\n"""
    )
    python.chmod(0o755)
    command = [sys.executable, "-m", "batchmill", "review", "out", f"--python={python}"]
    done = subprocess.run(
        [*command, "--html", "r.html"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{planted.folder}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3, done.stderr
    changed = f"libraries: {planted.library} 1.0 -> 2.0 (10 results of the old one)"
    assert changed in done.stdout
    assert "10 of 10 results differ." in Path("r.html").read_text()


def test_the_forecast_of_the_size_is_that_of_the_run(planted):
    found = reviewed(planted, {"times": 3})
    run_job("in", planted.step, "new", times=3)
    sizes = [path.stat().st_size for path in Path("new/files").rglob("*.txt")]
    assert found.bytes[1] * found.inputs == pytest.approx(sum(sizes))


def test_bad_input_writes_nothing(planted, capsys):
    with pytest.raises(OptionError, match="no such folder"):
        batchmill.review("nothing")
    for options in ("--sample 0", "--python no/such/python", "-o no/r.html", "-o ."):
        with pytest.raises(SystemExit) as end:
            main(["review", "out", *options.split(), "--markdown", "r.md"])
        assert end.value.code == 2
        assert not Path("r.md").exists()
