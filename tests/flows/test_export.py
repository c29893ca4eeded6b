"""The flow that exports a dataset."""

import pyarrow.parquet as pq
import pytest
from batchmill.flows import deployment_checks
from batchmill.flows.export import export
from harness.exports import animals

from batchmill import OptionError, verify_export


def test_the_flow_exports_the_chosen_rows(tmp_path):
    dataset = animals(tmp_path / "d", partition=["a", "b", "c"] * 8)
    out = tmp_path / "shards"
    state = export.fn(str(dataset), str(out), partition="a, b", where="label == 'dog'")
    assert state.is_completed()
    assert state.message.startswith("8 samples in 1 shard (1 written), ")
    assert state.message.endswith(f": {out}")
    assert verify_export(out).empty
    hub = tmp_path / "hub"
    export.fn(str(dataset), str(hub), "huggingface", class_label="label, partition")
    (shard,) = hub.glob("data/a-*")
    assert pq.read_table(shard)["label"].unique().to_pylist() == [1]


@pytest.mark.parametrize("out", ["", "shards"])
def test_a_place_in_the_temporary_folder_of_a_deployment_is_rejected(tmp_path, monkeypatch, out):
    (tmp_path / "tmp-prefect").mkdir()
    monkeypatch.chdir(tmp_path / "tmp-prefect")
    monkeypatch.setattr(deployment_checks, "_is_deployed", lambda: True)
    with pytest.raises(OptionError, match="works in a temporary folder"):
        export.fn(str(tmp_path / "d"), out)


def test_an_administrator_can_limit_where_the_flow_writes(tmp_path, monkeypatch):
    dataset = animals(tmp_path / "allowed" / "d")
    monkeypatch.setenv("BATCHMILL_ALLOWED_DATASETS", str(tmp_path / "allowed"))
    with pytest.raises(OptionError, match="BATCHMILL_ALLOWED_DATASETS"):
        export.fn(str(dataset), str(tmp_path / "elsewhere"))
    assert not (tmp_path / "elsewhere").exists()
    export.fn(str(dataset), str(tmp_path / "allowed" / "shards"))
