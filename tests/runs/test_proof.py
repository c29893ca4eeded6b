"""`verify --execute` makes results of a dataset again, and compares them with its records."""

import datetime
import json
import os
import shutil
import sys
from dataclasses import asdict, replace
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness.comparison import contents
from harness.jobs import run_job

import batchmill
from batchmill import OptionError, StepError, StoreError
from batchmill.cli.main import main
from batchmill.core.layout import METADATA, PARTS
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.parts import PART_SCHEMA, write_hashed
from batchmill.core.ledger.proof_records import Proof
from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.storage import LocalStore
from batchmill.core.storage.fingerprints import hash_bytes
from batchmill.datasets.maintenance.cleanup import forget_runs
from batchmill.datasets.maintenance.verify import examine
from batchmill.datasets.maintenance.versions import keep_version, list_versions
from batchmill.datasets.publishing import metadata_table
from batchmill.datasets.publishing.report.facts import gather
from batchmill.runs.proof import ProofOptions, prove, record_proof

pytestmark = pytest.mark.slow

STEP = """
import os, random, time
from pathlib import Path

def step(source, out, *, times=1, noise=False):
    text = source.read_text()
    if Path(__file__).with_name("fails").exists():
        raise ValueError("out of order")
    if Path(__file__).with_name("hangs").exists():
        time.sleep(3600)
    for n, letter in enumerate(text):
        (out / f"{n}.txt").write_text(letter * times)
        yield {
            "output": f"{n}.txt", "letter": letter, "share": 1 / (n + 3), "mixed": n or letter,
            "noise": random.random() if noise else 0.0, "parts": [n, n + 1],
        }

def labelled(source, row):
    text = source.read_text() + row["label"]
    yield {"text": text, "years": row["age"] * 2, "when": {text: row["age"]}}
    yield {"text": text, "label": "another"}  # Replaces the manifest's value.

def sited(source):
    return {} if source.name == "01.txt" else {"site": "own"}

def typed(source, row):
    when = row["day"].year, row["at"].hour, row["price"].as_tuple().exponent
    return {"when": list(when), "size": repr(row["size"])}

def keys(source):
    return {f"{source.stem}-{key}": key for key in range(5)}  # 60 keys of twelve inputs.

def with_source(source, row):
    return {"text": source.read_text(), "from": row["made_from"], "part": row["letter"]}

def shown(source, row):
    return {"row": repr(row)}

def with_mask(source, mask):
    return {"text": source.read_text() + mask.read_text()}

def names(source):
    return {"names": sorted(path.name for path in source.iterdir())}

async def waits(source):
    return {"text": source.read_text()}

class Doubled:
    def __init__(self, inputs):
        self.inputs = [Path(path) for path in inputs]
    def __len__(self):
        return len(self.inputs)
    def __getitem__(self, index):
        return len(self.inputs[index].read_text())
    def begin_batch(self, batch):
        return lambda: {"length": batch * 2}
    def process_batch(self, batch):
        return self.begin_batch(batch)()
"""


@pytest.fixture
def module(tmp_path, monkeypatch, warm_process, known_packages):
    """Make a folder with a step and twelve inputs the working folder; return the step's module."""
    module = f"proved_{abs(hash(str(tmp_path)))}"
    home = tmp_path / "home"
    (home / "in").mkdir(parents=True)
    (home / f"{module}.py").write_text(STEP)
    for number in range(12):
        (home / "in" / f"{number:02}.txt").write_text("text"[: number % 5])
    monkeypatch.chdir(home)
    monkeypatch.syspath_prepend(home)
    return module


def prove_one(dataset="out", count=0, **options):
    return next(prove(str(dataset), ProofOptions(count=count, **options)))


def ledger():
    return Ledger(LocalStore(Path("out").absolute()))


def test_all_results_of_a_right_dataset_are_equal(module):
    run_job("in", f"{module}:step", "out", times=3)
    before = contents(Path("out"))
    proof = prove_one()
    assert proof.is_equal
    assert (proof.results, proof.sample, proof.made) == (12, 12, 12)
    assert proof.lines()[1:] == ["All 12 are equal."]
    assert contents(Path("out")) == before
    # Only the record of the proof is written, and verification knows it.
    assert record_proof(proof) == ""
    assert examine(ledger()) == []
    assert [asdict(one) for one in ledger().proofs.read_all()] == [asdict(proof)]


def test_a_sample_is_random_and_its_seed_repeats_it(module):
    run_job("in", f"{module}:step", "out", noise=True)
    proof, again, other = (prove_one(count=4, seed=seed) for seed in (7, 7, 8))
    assert (proof.sample, proof.results, proof.seed) == (4, 12, 7)
    chosen = [[line.split(":")[0] for line in one.differences] for one in (proof, again, other)]
    assert chosen[0] == chosen[1] != chosen[2]


def test_a_sample_that_is_equal_bounds_the_share_of_differences(module):
    run_job("in", f"{module}:step", "out")
    first, second = prove_one(count=4, seed=1).lines()
    assert first.startswith("out, version 1: 4 of 12 results made again on ")
    assert ", seed 1, in " in first
    assert second == (
        "All 4 are equal. So with 95 % confidence fewer than 52.8 % of the 12 differ."
    )
    assert prove_one(count=100).sample == 12


def test_a_step_that_is_not_deterministic_is_found_by_its_column(module):
    run_job("in", f"{module}:step", "out", noise=True)
    proof = prove_one()
    assert proof.counts == {"noise": 9}  # Three inputs are empty, and have no row.
    assert (proof.different, proof.is_equal) == (9, False)
    assert "  noise: differs in 9 of 12" in proof.lines()


def test_inputs_that_are_gone_or_changed_are_no_differences(module):
    run_job("in", f"{module}:step", "out")
    Path("in/03.txt").unlink()
    Path("in/04.txt").write_text("TEXT")
    os.utime("in/05.txt", (1, 1))
    proof = prove_one()
    assert (proof.made, proof.different, proof.is_equal) == (10, 0, False)
    assert proof.not_made == {"the input does not exist here": 1, "the input has changed": 1}
    assert proof.lines()[1:] == [
        "2 results cannot be made again:",
        "  1: the input does not exist here (03.txt)",
        "  1: the input has changed (04.txt)",
        "All 10 are equal.",
    ]


def change_a_record():
    """Change a row in a part of the only version, and each hash up to its snapshot."""
    (version,) = ledger().snapshots.versions()
    state = ledger().files.read_state(version)
    parts = {name: ledger().read_part(name).cast(PART_SCHEMA) for name in state.parts}
    texts = {name: records["rows"].to_pylist() for name, records in parts.items()}
    name = next(name for name in texts if '"letter":"t"' in "".join(texts[name]))
    rows = texts[name]
    place = next(place for place, text in enumerate(rows) if '"letter":"t"' in text)
    rows[place] = rows[place].replace('"letter":"t"', '"letter":"T"', 1)
    column = PART_SCHEMA.get_field_index("rows")
    changed = parts[name].set_column(column, PART_SCHEMA.field(column), pa.array(rows))
    forged = write_hashed(ledger().store, f"{PARTS}/000001-forged", changed).rpartition("/")[2]
    names = [forged if one == name else one for one in state.parts]
    written = ledger().files.write_state(1, replace(state, parts=names)).file
    ledger().snapshots.record(replace(version, state=written))


def test_a_row_that_was_changed_in_the_ledger_is_found(module):
    run_job("in", f"{module}:step", "out")
    change_a_record()
    proof = prove_one()
    assert proof.different == 1
    assert proof.counts == {"letter": 1}


def change_table(*, forged):
    """Change a row in the table of the only version. `forged`: also the hash of the table."""
    (version,) = ledger().snapshots.versions()
    name = ledger().snapshots.file_name(version.number, "table")
    table = pq.read_table(f"out/{name}")
    letters = ["X", *table["letter"].to_pylist()[1:]]
    place = table.column_names.index("letter")
    pq.write_table(table.set_column(place, "letter", pa.array(letters)), f"out/{name}")
    if forged:
        content = hash_bytes(Path("out", name).read_bytes())
        published = {**version.tables[METADATA], "content": content}
        tables = {**version.tables, METADATA: published}
        ledger().snapshots.record(replace(version, tables=tables))


def test_a_table_that_was_changed_is_found(module):
    run_job("in", f"{module}:step", "out")
    change_table(forged=False)
    proof = prove_one()
    assert (proof.different, proof.is_equal) == (0, False)
    assert proof.lines()[1] == "The table of the version was changed after it was published."


def test_a_row_that_was_changed_together_with_the_hash_of_the_table_is_found(module):
    run_job("in", f"{module}:step", "out")
    change_table(forged=True)
    proof = prove_one()
    assert proof.differences == ["01.txt: letter: t in its record, X in the table"]
    assert proof.counts == {"letter": 1}


def test_a_sample_of_results_has_the_columns_of_the_whole_table(module, monkeypatch):
    monkeypatch.setattr(metadata_table, "MAX_COLUMNS", 40)
    run_job("in", f"{module}:keys", "out")
    assert "more_columns" in batchmill.metadata("out").columns
    proof = prove_one(count=9)
    assert (proof.made, proof.is_equal) == (9, True), proof.lines()


def test_a_column_of_the_manifest_with_the_name_of_an_added_column_is_no_difference(module):
    write_list(pack=["crate"] * 12)
    run_job("list.parquet", f"{module}:step", "out", options={"pack": "1MB"})
    assert "pack_" in batchmill.metadata("out").columns
    assert prove_one(count=2).is_equal


def test_a_column_of_the_step_that_the_manifest_has_later_is_no_difference(module):
    Path("m.csv").write_text("input\nin/01.txt\n")
    run_job("m.csv", f"{module}:sited", "out")
    Path("m.csv").write_text("input,site\nin/01.txt,meadow\nin/02.txt,forest\n")
    run_job("m.csv", f"{module}:sited", "out")
    assert batchmill.metadata("out")["site"].tolist() == ["meadow", "own"]
    assert prove_one().is_equal


@pytest.mark.parametrize("change", ["code", "gone"])
def test_a_step_that_differs_here(module, change, monkeypatch):
    run_job("in", f"{module}:step", "out")
    file = Path(f"{module}.py")
    monkeypatch.delitem(sys.modules, module, raising=False)
    if change == "gone":
        file.unlink()
        with pytest.raises(StepError, match=f"no module '{module}'"):
            prove_one()
        return
    # The size changes, too: Python compares sizes, and times in whole seconds only.
    file.write_text(STEP.replace("1 / (n + 3)", "1 / (n + 4.5)"))
    proof = prove_one(count=5)
    assert (proof.made, proof.different, proof.is_equal) == (0, 0, False)
    assert proof.not_made == {f"the step differs here: step ({file.absolute()})": 5}


def test_results_of_an_earlier_version_of_the_step_cannot_be_made_again(module, monkeypatch):
    run_job("in", f"{module}:step", "out")
    monkeypatch.delitem(sys.modules, module, raising=False)
    Path(f"{module}.py").write_text(STEP.replace("1 / (n + 3)", "1 / (n + 4.5)"))
    run_job("in", f"{module}:step", "out", options={"sample": 5})
    proof = prove_one()
    assert (proof.made, proof.different) == (5, 0)
    assert proof.not_made == {"an earlier version of the step made it": 7}


@pytest.mark.parametrize(("trouble", "text"), [("fails", "failed: "), ("hangs", "timeout: ")])
def test_a_step_that_fails_now_differs(module, trouble, text):
    policy = FailurePolicy(retries=0, timeout=5)
    run_job("in", f"{module}:step", "out", policy=policy)
    Path(trouble).touch()
    proof = prove_one(count=1)
    assert proof.counts == {"outcome": 1}
    assert text in proof.differences[0]


def test_only_ok_results_that_are_still_listed_can_be_chosen(module):
    Path("in/06.txt").write_bytes(b"\xff")
    run_job("in", f"{module}:step", "out", policy=FailurePolicy(retries=0, max_failures="1"))
    assert prove_one().results == 11
    Path("in/07.txt").unlink()
    run_job("in", f"{module}:step", "out", policy=FailurePolicy(max_failures="1"))
    assert prove_one().results == 10


def test_an_earlier_version_is_proved_with_its_own_params(module):
    run_job("in", f"{module}:step", "out", times=1)
    keep_version(ledger(), 1, "paper")
    run_job("in", f"{module}:step", "out", times=2)
    paper, last = prove_one(version="paper"), prove_one()
    assert (paper.version, paper.names, last.version) == (1, ["paper"], 2)
    assert paper.is_equal
    assert last.is_equal
    for proof in (paper, last):
        record_proof(proof)
    listed = list_versions(ledger())
    assert [one.proof for one in listed] == [paper.short, last.short]
    assert gather(ledger(), 2, "out").adoptions == [
        f"version 1: {paper.short}",
        f"version 2: {last.short}",
    ]


def test_a_proof_is_removed_with_its_version(module):
    for times in (1, 2, 3):
        run_job("in", f"{module}:step", "out", times=times)
        record_proof(prove_one(count=1))
    run_job("in", f"{module}:step", "out", times=4)
    assert {one.version for one in ledger().proofs.read_all()} <= {
        one.number for one in ledger().snapshots.versions()
    }


def test_another_machine_with_other_folders_and_no_rights_to_write(module, tmp_path, monkeypatch):
    run_job("in", f"{module}:step", "out")
    away = tmp_path / "away"
    (tmp_path / "home").rename(away)
    monkeypatch.chdir(away)
    monkeypatch.syspath_prepend(away)
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(OptionError, match="in: this folder of the inputs does not exist here"):
        prove_one()
    proof = prove_one(root=str(away / "in"))
    assert proof.is_equal
    assert proof.made == 12

    def refuse(store, name, data):
        raise StoreError(name, "read-only file system.")

    monkeypatch.setattr(LocalStore, "write", refuse)
    assert "read-only file system" in record_proof(proof)


@pytest.mark.parametrize("form", ["packs", "folders", "masks", "rows", "waits", "batches"])
def test_every_form_of_a_dataset(module, form):
    step, manifest, options = "step", "in", {}
    if form == "packs":
        options = {"pack": "1MB"}
    elif form == "folders":
        step, manifest, options = "names", "folders", {"input_kind": "folder"}
        for number in range(4):
            shutil.copytree("in", f"folders/{number}")
            Path(f"folders/{number}/{number}.txt").touch()
    elif form == "masks":
        step, manifest, options = "with_mask", "list.csv", {"file_columns": "mask"}
        table = {"input": ["in/03.txt", "in/04.txt"], "mask": ["in/01.txt", "in/02.txt"]}
        pd.DataFrame(table).to_csv("list.csv", index=False)
    elif form == "rows":
        step, manifest = "labelled", "list.csv"
        table = {"input": ["in/03.txt", "in/04.txt"], "label": ["a", "b"], "age": [1, 2]}
        pd.DataFrame(table).to_csv("list.csv", index=False)
    elif form == "waits":
        step = "waits"
    else:
        step = "Doubled"
    run_job(manifest, f"{module}:{step}", "out", options=options)
    proof = prove_one()
    assert proof.lines()[1:] == [f"All {proof.results} are equal."]
    assert proof.results == len(pd.read_parquet("out/metadata.parquet")["input"].unique()) or (
        step == "step"
    )


def test_a_step_of_a_notebook_that_was_kept_with_its_run(module):
    def step(source):
        return {"length": len(source.read_text()) * factor}

    factor = 3
    run_job("in", step, "out")
    with pytest.raises(OptionError, match="add --trust-step"):
        prove_one()
    assert prove_one(trust_step=True).lines()[1:] == ["All 12 are equal."]
    Path("in/11.txt").unlink()
    assert run_job("in", step, "out").executed == 0
    forget_runs(ledger(), 9, kept=1)  # As after many later runs.
    for version in (1, 2):
        proof = prove_one(version=version, trust_step=True)
        assert (proof.made, proof.different) == (11, 0)


@pytest.mark.parametrize("packed", [False, True])
def test_a_chain_of_datasets_is_followed_to_the_first(module, packed):
    options = {"pack": "1MB"} if packed else {}
    run_job("in", f"{module}:step", "out", options=options)
    run_job("out", f"{module}:waits", "second")
    run_job("in", f"{module}:step", "out", times=2, options=options, keep_versions=3)
    only = [*prove("second", ProofOptions())]
    both = [*prove("second", ProofOptions(deep=True))]
    assert [(one.dataset, one.version) for one in only] == [("second", 1)]
    assert [one.version for one in both] == [1, 1]
    assert all(one.is_equal for one in (*only, *both))
    assert both[0].results == 21


def test_a_chain_of_datasets_is_proved_at_another_place(module):
    run_job("in", f"{module}:step", "out")
    run_job("out", f"{module}:waits", "second")
    Path("out").rename("moved")
    with pytest.raises(OptionError, match=r"Give it with --root"):
        prove_one("second")
    both = [*prove("second", ProofOptions(root="moved", deep=True))]
    assert [(one.dataset, one.is_equal) for one in both] == [("second", True), ("moved", True)]


def test_a_removed_version_of_the_source_leaves_its_unchanged_outputs(module):
    run_job("in", f"{module}:step", "out")
    run_job("out", f"{module}:with_source", "second")
    Path("in/04.txt").write_text("TEXT")
    run_job("in", f"{module}:step", "out", keep_versions=0)
    second, first = prove("second", ProofOptions(deep=True))
    assert second.not_made == {"the input does not exist here": 4}
    assert (second.made, second.different) == (17, 0)
    assert (first.version, first.is_equal) == (2, True)


def test_a_dataset_in_a_bucket(module, bucket):
    run_job("in", f"{module}:step", f"{bucket}/out")
    proof = prove_one(f"{bucket}/out")
    assert proof.lines()[1:] == ["All 12 are equal."]
    assert record_proof(proof) == ""


def test_what_cannot_be_proved_is_refused(module):
    run_job("in", f"{module}:step", "out")
    with pytest.raises(OptionError, match="there is no such version"):
        prove_one(version=9)
    shutil.rmtree("out/.batchmill/steps")
    with pytest.raises(OptionError, match="the step of version 1 is not recorded"):
        prove_one()
    shutil.rmtree("out/.batchmill/snapshots")
    with pytest.raises(OptionError, match="has no version yet"):
        prove_one()


def test_from_python(module):
    run_job("in", f"{module}:step", "out")
    proof = batchmill.verify("out", execute=3, seed=5)
    assert isinstance(proof, Proof)
    assert (proof.sample, proof.seed, proof.is_equal) == (3, 5, True)
    assert batchmill.verify("out", execute="all").sample == 12
    assert batchmill.versions("out")["proof"].tolist() == [
        next(iter(ledger().proofs.read_all())).short
    ]


def verify(*arguments):
    """Call `batchmill verify`, and return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(["verify", "out", *arguments])
    return ended.value.code or 0


def test_the_command_prints_and_writes_the_proof(module, capsys):
    run_job("in", f"{module}:step", "out")
    assert verify("--execute", "all", "-o", "proof.json") == 0
    assert capsys.readouterr().out.endswith("All 12 are equal.\n")
    assert json.loads(Path("proof.json").read_text())["sample"] == 12
    assert verify("--execute", "2", "--json") == 0
    assert json.loads(capsys.readouterr().out)["sample"] == 2
    Path("in/03.txt").unlink()
    assert verify("--execute", "all") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--execute", "0"], "--execute 0: expected a number"),
        (["--execute", "few"], "--execute few: expected a number"),
        (["--execute", "2", "--hash"], "--execute cannot be combined"),
        (["--seed", "2"], "need --execute"),
        (["--execute", "2", "-o", "in/03.txt"], "--output in/03.txt: exists"),
    ],
)
def test_options_that_do_not_fit(module, capsys, arguments, message):
    assert verify(*arguments) == 2
    assert message in capsys.readouterr().err


def test_a_version_that_was_removed_meanwhile_gets_no_proof(module):
    run_job("in", f"{module}:step", "out")
    proof = prove_one()
    ledger().snapshots.remove(1)
    assert record_proof(proof) == "a run has removed version 1 meanwhile."
    assert ledger().proofs.numbers() == []


def test_a_step_gets_the_types_of_its_row_again(module):
    columns = {
        "day": [datetime.date(2024, 1, n) for n in range(1, 13)],
        "at": pd.date_range("2024-01-01", periods=12, tz="UTC"),
        "price": [Decimal("1.50")] * 12,
        "size": [float("nan"), *range(11)],
    }
    write_list(**columns)
    run_job("list.parquet", f"{module}:typed", "out")
    shutil.rmtree("out/.batchmill/runs")  # As it is after many later runs.
    proof = prove_one()
    assert (proof.made, proof.is_equal) == (12, True), proof.lines()


def write_list(**columns):
    """Write a manifest of the twelve inputs with further columns."""
    names = [f"in/{number:02}.txt" for number in range(12)]
    pd.DataFrame({"input": names, **columns}).to_parquet("list.parquet")


def test_a_step_gets_durations_and_times_of_its_row_again(module):
    waits = [datetime.timedelta(days=n - 6, seconds=n, microseconds=7) for n in range(12)]
    write_list(
        wait=waits,
        nanoseconds=pd.Series(waits, dtype="timedelta64[ns]") + pd.Timedelta(1),
        at=[datetime.time(n, 30, 0, n) for n in range(11)] + [None],
    )
    run_job("list.parquet", f"{module}:shown", "out")
    proof = prove_one()
    assert (proof.made, proof.is_equal) == (12, True), proof.lines()


def test_a_row_of_another_type_cannot_be_made_again(module):
    write_list(wait=["an hour"] * 12)
    run_job("list.parquet", f"{module}:shown", "out")
    write_list(wait=[datetime.timedelta(hours=n) for n in range(12)])
    run_job("list.parquet", f"{module}:shown", "out", options={"sample": 5})
    proof = prove_one()
    assert (proof.made, proof.different) == (5, 0), proof.lines()
    assert proof.not_made == {"the input has changed": 7}
