"""A job from Python: errors are reported before anything is written."""

import pytest

import batchmill
from batchmill import LedgerError, OptionError
from batchmill.ledger.lease import lease
from batchmill.ledger.ledger import Ledger
from batchmill.storage import LocalStore

SPLIT = "batchmill.steps.words:split"


@pytest.mark.parametrize(
    "wrong",
    [{"cluster": "nowhere"}, {"batch_size": 0}, {"max_failures": "some"}, {"retry": 3}],
)
def test_the_list_of_a_rejected_run_is_not_saved(words, tmp_path, wrong):
    with pytest.raises(OptionError):
        batchmill.run([words / "a.txt"], SPLIT, tmp_path / "out", **wrong)
    assert not (tmp_path / "out").exists()


def test_the_list_of_an_active_run_is_not_replaced(words, tmp_path):
    ledger = Ledger(LocalStore(tmp_path / "out"))
    ledger.create()
    with lease(ledger), pytest.raises(LedgerError, match="another run is using it"):
        batchmill.run([words / "a.txt"], SPLIT, tmp_path / "out")
    assert not (tmp_path / "out" / ".batchmill" / "manifest.parquet").exists()
