"""A version says the same after later runs: its root, step, inputs, partitions and files."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from harness.jobs import run_job

import batchmill
from batchmill.core.ledger.open import open_ledger
from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.runs.proof import ProofOptions, prove

pytestmark = pytest.mark.slow

STEP = """
from pathlib import Path

def copy(source: Path, out: Path) -> dict:
    text = source.read_text()
    if "bad" in text:
        raise ValueError(text)
    (out / "o.txt").write_text(text * 2)
    return {"output": "o.txt", "n": len(text)}

def measure(source):
    return {"n": len(source.read_text()), "text": source.read_text()}

def count(source):
    return {"n": len(source.read_text())}

def fail(source, mask: Path | None = None):
    raise ValueError("bad")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{module()}.py").write_text(STEP)
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(name * 3)
    return tmp_path


def module():
    """Return the name of the module of steps in the working folder. Each test has its own."""
    return f"recorded_{abs(hash(os.getcwd()))}"


def expecting(condition):
    return FailurePolicy(max_failures="100%", retries=0, expect=[condition])


def run(names, step="copy", output="D", manifest="m.csv", **options):
    Path(manifest).write_text("\n".join(["input", *(f"{name}.txt" for name in names), ""]))
    return start(manifest, step, output, **options)


def start(manifest, step, output="D", *, keep_versions=9, policy=None, **options):
    given = {"keep_versions": keep_versions, "num_workers": 1, "cores": 1, "policy": policy}
    force, prune = options.pop("force", False), options.pop("prune_failed", False)
    return run_job(
        manifest, f"{module()}:{step}", output, **given, force=force, prune_failed=prune,
        options=options,
    )  # fmt: skip


def test_the_samples_of_a_version_are_below_its_own_root(folder):
    for place, text in (("A", "old"), ("B", "new text")):
        (folder / place).mkdir()
        (folder / place / "a.txt").write_text(text)
    run("a", "measure", manifest="A/m.csv")
    strict = partial(run, "a", "measure", manifest="B/m.csv")
    assert strict(policy=expecting("n < 4")).unpublished
    (sample,) = batchmill.open_dataset("D", columns=["text"])
    assert (sample.text, sample.data) == ("old", "old")
    strict()
    for version, text in ((1, "old"), (3, "new text")):
        (sample,) = batchmill.open_dataset("D", columns=["text"], version=version)
        assert (sample.text, sample.data) == (text, text)


@pytest.mark.usefixtures("warm_process", "known_packages")
def test_a_version_is_proved_with_the_inputs_that_it_had(folder):
    run("ab")
    run("a")
    run("ab")
    for version, results in ((1, 2), (2, 1), (3, 2)):
        (proof,) = prove("D", ProofOptions(version=version))
        assert (proof.results, proof.made, proof.is_equal) == (results, results, True)


@pytest.mark.parametrize("accepts", [True, False])
@pytest.mark.usefixtures("known_packages")
def test_each_version_is_proved_with_its_own_step(folder, accepts):
    """Also if a refactored step gives an equal table, or its earlier results were accepted."""
    run("ab")
    before = open_ledger("D").snapshots.last_version()
    path = folder / f"{module()}.py"
    path.write_text(STEP.replace('"n": len(text)}', '"n": sum(1 for _ in text)}'))
    run("ab", accept_change=accepts)
    now = open_ledger("D").snapshots.last_version()
    assert (now.table, now.number) == (before.table, 2)
    (proof,) = prove("D", ProofOptions(version=2))
    assert (proof.made, proof.is_equal) == (2, True)
    (proof,) = prove("D", ProofOptions(version=1))
    assert proof.made == 0, "the code of version 1 is not there"
    path.write_text(STEP)
    (proof,) = prove("D", ProofOptions(version=1))
    assert (proof.made, proof.is_equal) == (2, True)


@pytest.mark.usefixtures("warm_process", "known_packages")
def test_changed_inputs_with_equal_results_make_a_version_that_can_be_proved(folder):
    run("ab", "count")
    (folder / "a.txt").write_text("zzz")
    run("ab", "count")
    assert run("ab", "count").executed == 0
    assert open_ledger("D").snapshots.numbers() == [1, 2]
    (proof,) = prove("D")
    assert (proof.version, proof.made, proof.is_equal) == (2, 2, True)


def test_a_dataset_is_made_of_the_last_of_equal_versions(folder):
    for text in ("A", "B", "A"):
        (folder / "a.txt").write_text(text)
        run("a")
    start("D", "measure", "E")
    assert open_ledger("E").snapshots.last_version().settings["source_version"] == 3


def test_inputs_that_are_packed_outputs_of_a_version_stay_readable(folder):
    run("a", pack="1MB")
    batchmill.keep("D", 1, name="paper")
    start("D@paper", "measure", "E")
    run("a", force=True)  # The same content, as a file of its own.
    (folder / "a.txt").write_text("bbb")
    run("a", keep_versions=0)
    assert [sample.data for sample in batchmill.open_dataset("E")] == ["aaaaaa"]


def test_a_run_that_publishes_nothing_moves_no_group(folder):
    names = [f"{number:02}" for number in range(12)]
    for name in names:
        (folder / f"{name}.txt").write_text(name)
    options = {"partition": "train=0.5,test=0.5", "stratify": "label"}

    def divide(count, **more):
        rows = [f"{n}.txt,{'dog' if k % 3 else 'cat'}" for k, n in enumerate(names[:count])]
        (folder / "p.csv").write_text("\n".join(["input,label", *rows, ""]))
        start("p.csv", "measure", **options | more)
        return batchmill.metadata("D").set_index("input")["partition"].to_dict()

    for count in (3, 7, 12):
        before = divide(count)
    assert divide(12, seed=1, policy=expecting("n > 99")) == before
    start("p.csv", "measure")
    assert divide(12) == before


def test_removed_results_never_come_back(folder):
    run("ab", keep_versions=0)
    (folder / "a.txt").write_text("bad now")
    for prune in (False, True):
        run("ab", keep_versions=0, prune_failed=prune)
    summary = folder / "D/.batchmill/runs/000003/summary.json"
    summary.write_bytes(summary.read_bytes()[:-5])
    batchmill.verify("D", repair=True)
    run("ab", keep_versions=0)
    assert batchmill.metadata("D")["input"].tolist() == ["b.txt"]
    assert batchmill.verify("D", hash=True).empty


def test_a_withdrawn_failure_that_is_listed_again_too_young_is_a_failure(folder):
    (folder / "in").mkdir()

    def put(name, text, age):
        (folder / "in" / name).write_text(text)
        os.utime(folder / "in" / name, (1e9, 1e9) if age else None)

    put("a.txt", "a", age=True)
    put("b.txt", "b", age=True)
    again = partial(start, "in", "copy", min_age=3600)
    again()
    put("b.txt", "bad", age=True)
    again()
    (folder / "in/b.txt").unlink()
    again()
    put("b.txt", "bad", age=False)
    again()
    assert batchmill.failures("D")["input"].tolist() == ["b.txt"]
    assert batchmill.metadata("D")["input"].tolist() == ["a.txt", "b.txt"]


def test_records_without_further_files_are_shown_beside_later_ones(folder):
    run("abc", "fail")
    rows = [f"{name}.txt,{name}.txt" for name in "abc"]
    (folder / "m2.csv").write_text("\n".join(["input,mask", *rows, ""]))
    summary = start("m2.csv", "fail", file_columns="mask", sample=1)
    assert (summary.executed, summary.unsampled) == (1, 2)
    assert dict(batchmill.status("D").counts) == {"failed": 1}
    assert len(batchmill.failures("D")) == 3


def test_a_removed_result_leaves_the_limit_of_a_timeout(folder):
    """The run of the record has the limit. A later run that removes the result must not."""
    run("a", "measure")
    ledger = open_ledger("D")
    state = ledger.state()
    (run_before,) = state.table["run"].to_pylist()
    late = state.changed(state.names, outcome="timeout", result_run=1, result_part=0, result_row=0)
    last = ledger.snapshots.last()
    assert last
    ledger.snapshots.record(replace(last, number=2, state=ledger.files.write_state(2, late).file))
    summary = run("a", "measure", prune_failed=True)
    assert summary.counts["quarantined"] == 1
    assert open_ledger("D").state().table.select(["run", "result_run"]).to_pylist() == [
        {"run": run_before, "result_run": None}
    ]
