"""Test datasets as manifests: the outputs of one are the inputs of the next."""

import shutil

import pandas as pd
import pytest
from harness.jobs import run_job

from batchmill import LedgerError, ManifestError, OptionError, load_manifest
from batchmill.core.ledger.open import open_output

COPY = "steps_under_test:copy"


@pytest.fixture
def dataset(words, tmp_path):
    run_job(words, COPY, tmp_path / "first", times=2)
    return tmp_path / "first"


def test_outputs_become_inputs_and_columns_are_kept(dataset):
    manifest = load_manifest(dataset)
    rows = pd.read_parquet(dataset / "metadata.parquet")
    assert manifest.inputs["input"].to_pylist() == rows["output"].tolist()
    assert (manifest.inputs["size"].to_numpy() > 0).all()
    assert manifest.root == str(dataset)
    others = [name for name in rows.columns if name not in ("input", "output")]
    assert sorted(manifest.manifest_columns.column_names) == sorted(["made_from", *others])
    assert manifest.manifest_columns["made_from"].to_pylist() == rows["input"].tolist()


def test_a_pattern_selects_outputs(dataset):
    every = load_manifest(dataset).inputs["input"].to_pylist()
    chosen = load_manifest(dataset, pattern="*/0.txt").inputs["input"].to_pylist()
    assert chosen == [name for name in every if name.endswith("/0.txt")] != []
    with pytest.raises(ManifestError, match="no output matches"):
        load_manifest(dataset, pattern="*.wav")


def test_datasets_can_be_chained(dataset, tmp_path):
    second, third = tmp_path / "second", tmp_path / "third"
    for manifest, output in ((dataset, second), (second, third)):
        summary = run_job(manifest, COPY, output, times=2)
        assert summary.outcomes.keys() == {"ok"}
        rows = pd.read_parquet(output / "metadata.parquet")
        before = pd.read_parquet(manifest / "metadata.parquet").set_index("output")["input"]
        assert before.loc[rows["input"]].tolist() == rows["made_from"].tolist()
        assert run_job(manifest, COPY, output, times=2).executed == 0


def test_a_dataset_with_a_damaged_table_is_rejected(dataset):
    table = dataset / ".batchmill" / "snapshots" / "000001-table.parquet"
    frame = pd.read_parquet(table)
    frame["input"] = frame["input"].str.upper()
    frame.to_parquet(table)
    with pytest.raises(LedgerError, match=r"000001-table\.parquet: is damaged.*run the job"):
        load_manifest(dataset)


def test_a_dataset_cannot_be_its_own_manifest(dataset):
    with pytest.raises(OptionError, match=r"is the same dataset as the manifest\. Choose"):
        run_job(dataset, COPY, dataset)


def test_a_dataset_cannot_be_made_inside_another(dataset, words):
    for inside in (dataset / "second", dataset / "files" / "deep" / "second"):
        with pytest.raises(OptionError, match="is inside the dataset"):
            run_job(words, COPY, inside)
        assert not inside.exists()


def test_a_bucket_is_not_inside_the_working_directory(dataset, bucket, monkeypatch):
    monkeypatch.chdir(dataset)
    assert open_output(f"{bucket}/out").part_names() == []


def test_datasets_without_tables_or_files_are_rejected(dataset, words, tmp_path):
    shutil.rmtree(dataset / ".batchmill" / "snapshots")
    with pytest.raises(ManifestError, match="without tables yet"):
        load_manifest(dataset)
    run_job(words, "steps_under_test:length", tmp_path / "table")
    with pytest.raises(ManifestError, match="without files, only a table"):
        load_manifest(tmp_path / "table")


def test_a_dataset_without_rows_names_the_command_that_lists_failures(tmp_path):
    (tmp_path / "b.txt").write_text("b")
    run_job(tmp_path / "*.txt", "steps_under_test:fails_on_b", tmp_path / "failed")
    with pytest.raises(ManifestError, match=r"no rows\. List its failed inputs: .*/failed"):
        load_manifest(tmp_path / "failed")
