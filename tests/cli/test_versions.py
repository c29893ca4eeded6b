"""The commands and calls that list, name and compare versions of a dataset, and list its files."""

import json
import shutil
from copy import deepcopy

import pandas as pd
import pytest
from harness.copying_job import CopyingJob
from harness.jobs import run_job

import batchmill
from batchmill import LedgerError, ManifestError, OptionError, StoreError
from batchmill.core.ledger.lease import lease
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.planning.run_spec import read_spec
from batchmill.core.storage import LocalStore
from batchmill.datasets.maintenance.verify import verify

pytestmark = pytest.mark.slow

STEP = """
def step(source, out):
    (out / "sub").mkdir()
    for name in ("a.txt", "sub/b.txt"):
        (out / name).write_text(f"{name} {source.read_text()}")
        yield {"output": name}
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return a job over three inputs whose dataset has the versions 1 and 2, and a copy of it."""
    folder = tmp_path_factory.mktemp("versions")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        made = CopyingJob(folder, 3)
        made.run()
        made.path("00001.txt").write_text("changed")
        made.names.append("00003.txt")
        made.path("00003.txt").write_text("new")
        made.list()
        made.run()
    return made, shutil.copytree(folder, folder.with_name(f"{folder.name}-copy"))


@pytest.fixture
def job(finished, monkeypatch):
    """Return the finished job. Its folder is as it was after the two runs."""
    made, copied = deepcopy(finished)
    shutil.rmtree(made.folder)
    shutil.copytree(copied, made.folder)
    made.edit()  # An earlier test may have imported other code.
    monkeypatch.chdir(made.folder)
    return made


def test_versions_lists_each_version_with_its_step_and_own_files(job, command):
    code, out, _ = command("versions", job.dataset)
    first, second = out.splitlines()
    assert code == 0
    assert first.startswith("1: ")
    assert "3 rows, 0 failures, step_" in first
    assert first.endswith("9 bytes that no other version has")
    assert second.endswith("10 bytes that no other version has")
    _, out, _ = command("versions", job.dataset, "--json")
    assert [(one["version"], one["rows"], one["own_bytes"]) for one in json.loads(out)] == [
        (1, 3, 9),
        (2, 4, 10),
    ]
    assert batchmill.versions(job.dataset)["own_bytes"].tolist() == [9, 10]


def test_a_kept_version_is_shown_and_read_by_its_name(job, command):
    code, out, _ = command("keep", job.dataset, 1, "--name", "paper")
    assert code == 0
    assert "version='paper'" in out
    assert command("versions", job.dataset)[1].startswith("1 (paper): ")
    assert len(batchmill.metadata(job.dataset, version="paper")) == 3
    assert len(batchmill.metadata(job.dataset)) == 4
    assert sorted(sample.data for sample in batchmill.open_dataset(job.dataset, version=1)) == [
        "00000.txt",
        "00001.txt",
        "00002.txt",
    ]
    assert command("keep", job.dataset, "--drop", "paper")[0] == 0
    assert batchmill.versions(job.dataset)["names"].tolist() == [[], []]
    assert list(verify(job.ledger)) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1,), "give a version and --name"),
        (("--name", "paper"), "give a version and --name"),
        ((1, "--name", "paper", "--drop", "x"), "give a version and --name"),
        ((7, "--name", "paper"), "there is no such version. Versions: 1, 2. Names: taken."),
        ((2, "--name", "taken"), "is the name of version 1"),
        ((2, "--name", "7"), "begins with a letter"),
        (("--drop", "other"), "no version has this name. Names: taken."),
    ],
)
def test_a_mistake_is_reported_and_changes_nothing(job, command, arguments, message):
    batchmill.keep(job.dataset, 1, name="taken")
    code, _, err = command("keep", job.dataset, *arguments)
    assert (code, message in err) == (2, True), err
    assert job.ledger.snapshots.names() == {"taken": 1}


def test_a_version_is_not_named_during_a_run(job):
    with lease(job.ledger), pytest.raises(LedgerError, match="another run is using it"):
        batchmill.keep(job.dataset, 1, name="paper")


def test_keep_takes_a_name_to_give_or_a_name_to_remove(job):
    for options in ({}, {"name": "a", "drop": "b"}):
        with pytest.raises(OptionError, match="give a version and name="):
            batchmill.keep(job.dataset, 1, **options)


def test_diff_names_the_inputs_that_differ_and_the_reason(job, command):
    code, out, _ = command("diff", job.dataset, 1, 2)
    assert code == 0
    assert out.splitlines() == [
        "3 rows before, 4 after",
        "added: 1: in/00003.txt",
        "changed (input): 1: in/00001.txt",
    ]
    assert command("diff", job.dataset, 1, 1)[1].endswith("The rows and files are the same.\n")
    found = batchmill.diff(job.dataset, 2, 1)
    assert (found.added, found.removed) == ([], ["in/00003.txt"])


@pytest.mark.parametrize("reason", ["step", "params", "removed"])
def test_diff_distinguishes_the_step_from_its_params(job, reason):
    if reason == "step":
        job.edit(helper="def measure(source):\n    return 2 * len(source.read_text())\n")
    if reason == "removed":
        job.names.remove("00002.txt")
        job.list()
    job.run(prune=reason == "removed", **({"times": 3} if reason == "params" else {}))
    found = batchmill.diff(job.dataset, 2, 3)
    if reason == "removed":
        assert (found.removed, found.changed) == (["in/00002.txt"], {})
    else:
        assert found.changed == {reason: [f"in/0000{number}.txt" for number in range(4)]}


def test_diff_names_the_inputs_whose_other_columns_changed(job):
    """The step does not take the row, so these inputs are not executed again."""
    job.labels["00001.txt"] = "dog"
    job.list()
    assert job.run() == 0
    assert batchmill.diff(job.dataset, 2, 3).changed == {"row": ["in/00001.txt"]}
    rows = "".join(f"in/{name},{number or ''}\n" for number, name in enumerate(job.names))
    (job.folder / "m.csv").write_text(f"input,size\n{rows}")
    assert job.run(options={"partition": "train=0.5,test=0.5"}) == 0
    assert batchmill.diff(job.dataset, 3, 4).changed == {
        "row": [f"in/{name}" for name in job.names]
    }


def test_diff_sees_a_changed_column_that_only_a_later_row_replaces(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "rows.py").write_text("def step(source): return [{'x': 1}, {'label': 'own'}]\n")
    for number, label in enumerate(("dog", "cat"), 1):
        (tmp_path / "m.csv").write_text(f"input,label\na.txt,{label}\n")
        run_job("m.csv", "rows:step", "out")
        batchmill.keep("out", number, name=label)
    assert batchmill.diff("out", 1, 2).changed == {"row": ["a.txt"]}


def test_diff_names_a_damaged_table(job, command):
    table = job.dataset / ".batchmill" / "snapshots" / "000001-table.parquet"
    table.write_bytes(table.read_bytes()[:100])
    code, _, err = command("diff", job.dataset, 1, 2)
    assert (code, f"{table}: is damaged. Its content does not match" in err) == (2, True), err


def test_a_version_that_a_run_removes_while_a_command_reads_it(job):
    ledger = Ledger(LocalStore(job.dataset))
    version = ledger.snapshots.find(1)
    job.run(keep_versions=0)
    for read in (ledger.files.read_table, ledger.files.read_state):
        with pytest.raises(StoreError, match="A run has removed version 1 meanwhile"):
            read(version)


def test_a_version_is_verified_alone(job, command):
    assert command("verify", job.dataset, "--version", "1", "--hash")[0] == 0
    (job.dataset / batchmill.metadata(job.dataset, version=1)["output"][1]).write_text("CHANGED!!")
    code, out, _ = command("verify", job.dataset, "--version", "1", "--hash")
    assert (code, "same size, different content" in out) == (1, True)
    assert "--repair" not in out
    assert f"To compare that one: batchmill verify {job.dataset}\n" in out
    assert command("verify", job.dataset, "--version", "2", "--hash")[0] == 0
    code, _, err = command("verify", job.dataset, "--version", "1", "--repair")
    assert (code, "--repair and --version cannot be combined" in err) == (2, True)
    table = job.dataset / ".batchmill" / "snapshots" / "000001-table.parquet"
    table.write_bytes(table.read_bytes() + b"x")
    found = batchmill.verify(job.dataset, version=1)
    assert found["message"].tolist() == ["differs from the published table"]


def test_a_manifest_may_name_a_version_and_its_number_is_recorded(job):
    batchmill.keep(job.dataset, 1, name="paper")
    for text, rows, number in (("out@paper", 3, 1), ("out@1", 3, 1), ("out", 4, 2)):
        manifest = batchmill.load_manifest(text)
        assert (len(manifest), manifest.version) == (rows, number)
        assert manifest.dataset == str(job.dataset)
    run_job("out@paper", f"{job.module}:step", "parts")
    assert read_spec(Ledger(LocalStore("parts")), 1).source_version == 1
    assert len(batchmill.metadata("parts")) == 3
    with pytest.raises(OptionError, match="version nope: there is no such version"):
        batchmill.load_manifest("out@nope")
    with pytest.raises(OptionError, match="is the same dataset as the manifest"):
        run_job("out@1", f"{job.module}:step", "out")
    with pytest.raises(ManifestError, match="no such file or folder"):
        batchmill.load_manifest("other@1")


def test_status_counts_the_withdrawn_inputs(job, command):
    job.names.remove("00002.txt")
    job.list()
    assert job.run() == 0
    assert "1 withdrawn input, which the manifest" in command("status", job.dataset)[1]
    assert len(batchmill.open_dataset(job.dataset)) == 3
    job.names.append("00002.txt")
    job.list()
    assert job.run() == 0, "its result was kept"
    assert len(batchmill.open_dataset(job.dataset)) == 4
    job.names.remove("00002.txt")
    job.list()
    job.run(prune=True)
    assert "withdrawn" not in command("status", job.dataset)[1]


@pytest.fixture(scope="module", params=[{}, {"pack": "1MB"}], ids=["files", "packs"])
def dataset(tmp_path_factory, request):
    """Return a dataset with two versions, which tests only read."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "two_files.py").write_text(STEP)
    (folder / "manifest.csv").write_text("input\na.txt\nb.txt\n")
    (folder / "b.txt").write_text("scaleable")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        for text in ("simple", "later"):
            (folder / "a.txt").write_text(text)
            run_job("manifest.csv", "two_files:step", "out", options=request.param)
    return folder / "out"


def test_the_files_of_an_input_are_listed_and_copied(dataset, command, tmp_path):
    code, out, _ = command("files", dataset, "a.txt")
    assert code == 0
    assert [line.partition(",")[0] for line in out.splitlines()] == [
        "a.txt: 11 bytes",
        "sub/b.txt: 15 bytes",
    ]
    _, out, _ = command("files", dataset, "a.txt", "--json")
    assert [file["name"] for file in json.loads(out)] == ["a.txt", "sub/b.txt"]
    _, out, _ = command("files", dataset, "a.txt", "-o", tmp_path / "copies")
    assert out.startswith("Copied 2 files to ")
    assert (tmp_path / "copies/sub/b.txt").read_text() == "sub/b.txt later"
    _, _, err = command("files", dataset, "a.txt", "--output", tmp_path / "copies")
    assert "exists already" in err


def test_one_file_of_an_earlier_version(dataset, command, tmp_path):
    code, _, _ = command("files", dataset, "a.txt", "--version", "1", "-o", tmp_path / "old")
    assert code == 0
    assert (tmp_path / "old/a.txt").read_text() == "a.txt simple"
    name = pd.read_parquet(dataset / "metadata.parquet")["output"][1]
    _, out, _ = command("files", dataset, name)
    assert out.startswith("sub/b.txt: ")


@pytest.mark.parametrize("arguments", [("other.txt",), ("a.txt", "--version", "9")])
def test_an_unknown_input_or_version_is_refused(dataset, command, arguments):
    code, _, err = command("files", dataset, *arguments)
    assert code == 2
    assert "there is no such version" in err or "no such input or output" in err
