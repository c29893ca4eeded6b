"""The flow that exports a dataset."""

import pytest
from batchmill.flows.export import export
from exports import animals

from batchmill import OptionError, verify_export


def test_the_flow_exports_the_chosen_rows(tmp_path):
    dataset = animals(tmp_path / "d", partition=["a", "b", "c"] * 8)
    out = tmp_path / "shards"
    state = export.fn(str(dataset), str(out), partition="a, b", where="label == 'dog'")
    assert state.is_completed()
    assert state.message.startswith("8 samples in 1 shard (1 written), ")
    assert state.message.endswith(f": {out}")
    assert verify_export(out).empty


def test_an_administrator_can_limit_where_the_flow_writes(tmp_path, monkeypatch):
    dataset = animals(tmp_path / "allowed" / "d")
    monkeypatch.setenv("BATCHMILL_ALLOWED_DATASETS", str(tmp_path / "allowed"))
    with pytest.raises(OptionError, match="BATCHMILL_ALLOWED_DATASETS"):
        export.fn(str(dataset), str(tmp_path / "elsewhere"))
    assert not (tmp_path / "elsewhere").exists()
    export.fn(str(dataset), str(tmp_path / "allowed" / "shards"))
