"""The ledger stores a description of each step."""

import pytest

from batchmill import LedgerError
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.storage import LocalStore


@pytest.fixture
def ledger(tmp_path):
    return Ledger(LocalStore(tmp_path))


def test_the_first_description_of_a_step_is_kept(ledger):
    assert ledger.read_step("abc") is None
    ledger.record_step("abc", {"step": "m:f", "params": {"n": 3}})
    ledger.record_step("abc", {"step": "another"})
    assert ledger.read_step("abc") == {"step": "m:f", "params": {"n": 3}}


@pytest.mark.parametrize("content", ['{"step"', "[]"])
def test_the_error_names_a_damaged_description(ledger, tmp_path, content):
    ledger.record_step("abc", {"step": "m:f"})
    (tmp_path / ".batchmill/steps/abc.json").write_text(content)
    with pytest.raises(
        LedgerError, match=r"steps/abc\.json: is damaged, or is not a file of this ledger"
    ):
        ledger.read_step("abc")
