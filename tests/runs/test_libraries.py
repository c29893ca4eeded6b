"""Test that each result knows its libraries, and that an upgrade is said, counted or verified."""

import json
import sys
from pathlib import Path

import pytest
from harness.jobs import job_of, run_job
from harness.libraries import Site

import batchmill
from batchmill.cli.main import main
from batchmill.core.ledger.open import open_ledger
from batchmill.core.planning.prepare import prepare

pytestmark = pytest.mark.slow

# By the name of a library: its files, and what it requires. The step names or reaches all.
USED = {
    "plain": ({"plain/__init__.py": "N = 1"}, []),
    "single-file": ({"single_file.py": "import needed\nN = needed.N"}, ["needed>=1"]),
    "needed": ({"needed.py": "import deep\nN = deep.N"}, ["deep"]),
    "deep": ({"deep/__init__.py": "N = 1"}, []),
    "Other-Name": ({"imported_as/__init__.py": "N = 1"}, []),
    "in-function": ({"in_function.py": "import its_own\nN = its_own.N"}, ["its-own"]),
    "its-own": ({"its_own.py": "N = 1"}, []),
    "from-import": ({"from_import/__init__.py": "", "from_import/part.py": "N = 1"}, []),
    "as-other": ({"as_other.py": "N = 1"}, []),
    "space-one": ({"space/one/__init__.py": "N = 1"}, []),
    "space-deep": ({"space/deep/inner/__init__.py": "N = 1"}, []),
    "computed": ({"computed.py": "N = 1"}, []),
    "plugin": ({"plugin_of_computed.py": "N = 1"}, []),
    "optional": ({"optional.py": "N = 1"}, []),
    "of-helper": ({"of_helper.py": "N = 1"}, []),
    "of-class": ({"of_class.py": "N = 1"}, []),
    "decorates": ({"decorates.py": "def same(f): return f"}, []),
    "effect": ({"effect.py": "N = 1"}, []),
    "late-module": ({"late_module/__init__.py": "N = 1"}, []),
    "base-class": ({"base_class.py": "class Base: pass"}, []),
}
UNUSED = {
    "space-two": ({"space/two/__init__.py": "N = 1"}, []),
    "unused": ({"unused.py": "N = 1"}, []),
    "of-unused-helper": ({"of_unused_helper.py": "N = 1"}, []),
    "not-imported": ({"not_imported.py": "N = 1"}, []),
}
STEP = """
import importlib
import effect
import own_helper
import plain
import single_file
import as_other as other
from from_import import part
from space import one
import space.deep.inner
from decorates import same
from base_class import Base
try:
    import optional
except ImportError:
    optional = None

class Tool(Base):
    def use(self):
        import of_class
        return of_class.N

@same
def step(source):
    import in_function
    import imported_as
    late = importlib.import_module("".join(["comp", "uted"]))
    plugin = importlib.import_module(f"plugin_of_{late.__name__}")
    found = importlib.import_module("late_module")
    used = plain, single_file, other, part, one, space.deep.inner, optional, in_function
    return {"n": sum(x.N for x in used) + own_helper.helped() + Tool().use() + found.N}
"""
HELPER = "import of_helper\ndef helped(): return of_helper.N\n"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Return a folder of libraries in version 1.0, beside a step that imports most of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    site = Site(tmp_path)
    monkeypatch.syspath_prepend(str(site.folder))
    for name, (files, requires) in (USED | UNUSED).items():
        site.install(name, "1.0", files, requires)
    (tmp_path / "own_libraries.py").write_text(STEP)
    (tmp_path / "own_helper.py").write_text(HELPER)
    (tmp_path / "in").mkdir()
    for name in "abc":
        (tmp_path / "in" / name).write_text(name)
    return site


def run(**options):
    return run_job("in", "own_libraries:step", "out", options=options)


def planned(**options):
    return prepare(job_of("in", "own_libraries:step", "out", **options))


def recorded():
    (found,) = open_ledger("out").state().libraries
    return json.loads(found)


def test_each_library_that_the_step_uses_is_recorded_and_no_other(site):
    run()
    theirs = {name for name in recorded() if name in USED | UNUSED}
    assert theirs == {*USED}
    assert recorded()["Python"] == sys.version.split()[0]
    assert not {"torch", "pyarrow", "pytest", "prefect", "batchmill"} & {*recorded()}


def test_each_upgrade_is_named(site):
    run()
    assert planned().library_changes == []
    for name, (files, requires) in (USED | UNUSED).items():
        site.install(name, "2.0", files, requires)
        found = planned()
        assert found.plan.counts["unchanged"] == 3
        expected = [f"libraries: {name} 1.0 -> 2.0 (3 results of the old one)"]
        assert found.change_lines() == (expected if name in USED else [])
        site.install(name, "1.0", files, requires)


def test_results_of_several_versions_are_counted_together(site):
    run()
    site.install("plain", "2.0", USED["plain"][0])
    (site.folder.parent / "in" / "d").write_text("d")
    run()
    site.install("plain", "3.0", USED["plain"][0])
    assert planned().change_lines() == [
        "libraries: plain 1.0, 2.0 -> 3.0 (4 results of the old ones)"
    ]


def test_an_upgrade_that_counts_executes_the_inputs_again(site):
    run()
    site.install("plain", "2.0", USED["plain"][0])
    found = planned(libraries="count")
    assert found.plan.counts["changed"] == 3
    assert found.change_lines() == ["Re-running all inputs: library plain 1.0 -> 2.0."]
    assert run(libraries="count").executed == 3
    assert recorded()["plain"] == "2.0"
    assert run(libraries="count").executed == 0


@pytest.mark.parametrize("option", ["verify_change", "accept_change"])
def test_equal_results_of_an_upgrade_are_kept(site, option):
    run()
    site.install("plain", "2.0", USED["plain"][0])
    given = {"verify_change": 2} if option == "verify_change" else {"accept_change": True}
    summary = run(libraries="count", **given)
    assert (summary.executed, summary.counts["adopted"]) == (0, 3)
    # They are results of the present version now.
    assert run(libraries="count").executed == 0
    assert planned().change_lines() == []


def test_other_results_of_an_upgrade_are_made_again(site):
    run()
    files = {"single_file.py": "import needed\nN = 7"}
    site.install("single-file", "2.0", files, ["needed"])
    del sys.modules["single_file"], sys.modules["own_libraries"]
    assert run(libraries="count", verify_change=2).executed == 3


def test_a_program_of_the_step_counts_with_its_version(site, monkeypatch):
    program = site.folder.parent / "tool"
    program.write_text("#!/bin/sh\necho 'tool 1.0' >&2\necho 'no such option' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    with open("own_libraries.py", "a") as file:
        file.write("step.tools = ['tool', 'not-installed']\n")
    run()
    assert recorded()["tool --version"] == "tool 1.0"
    program.write_text("#!/bin/sh\necho 'tool 2.0'\n")
    assert planned().change_lines() == [
        "libraries: tool --version tool 1.0 -> tool 2.0 (3 results of the old one)"
    ]


def shown(capsys, *command):
    with pytest.raises(SystemExit):
        main([*command])
    return capsys.readouterr().out


def test_a_mixture_is_shown_wherever_a_dataset_is_shown(site, capsys):
    run(keep_versions=5)
    files = {"plain/__init__.py": "N = 2"}
    site.install("plain", "2.0", files)
    (site.folder.parent / "in" / "d").write_text("d")
    for module in ("plain", "own_libraries"):
        del sys.modules[module]
    run(keep_versions=5)
    assert "plain: 1.0 (3 results), 2.0 (1 result)\n" in shown(
        capsys, "status", "out", "--libraries"
    )
    assert "plain" not in shown(capsys, "status", "out")
    assert "library plain: 1.0 -> 1.0, 2.0\n" in shown(capsys, "diff", "out", "1", "2")
    rows = batchmill.metadata("out", libraries=True)
    versions = [json.loads(text)["plain"] for text in rows["libraries"]]
    assert versions == ["1.0", "1.0", "1.0", "2.0"]
    assert "libraries" not in batchmill.metadata("out")
    shown(capsys, "report", "out")
    page = Path("out/report.html").read_text()
    assert "<td>plain</td><td>1.0</td>" in page.replace("\n", "")
    proof = batchmill.verify("out", execute="all", seed=1)
    assert (proof.different, proof.libraries) == (
        3,
        ["libraries: plain 1.0 -> 2.0 (3 results of the old one)"],
    )


def test_a_result_that_was_executed_with_another_library_is_no_plain_repetition(site):
    run(keep_versions=5)
    site.install("plain", "2.0", {"plain/__init__.py": "N = 2"})
    for module in ("plain", "own_libraries"):
        del sys.modules[module]
    run(keep_versions=5, libraries="count")
    assert batchmill.diff("out", 1, 2).changed == {"libraries": ["a", "b", "c"]}


def test_machines_with_several_versions_are_named_at_the_end_of_the_run(site, monkeypatch):
    """Each shard has a process of its own; the second one finds another version."""
    from batchmill.core.user_step import libraries

    text = libraries.StepLibraries.text
    versions = iter(["1.0", "1.0", "2.0"])

    def on_another_machine(self):
        return json.dumps({**json.loads(text(self)), "plain": next(versions)})

    monkeypatch.setattr(libraries.StepLibraries, "text", on_another_machine)
    summary = run_job("in", "own_libraries:step", "out", cores=3, num_workers=1, batch_size=1)
    several = "Warning: the machines of this run have several versions of plain: "
    assert summary.mixtures == (f"{several}1.0 (2 results), 2.0 (1 result).",)
