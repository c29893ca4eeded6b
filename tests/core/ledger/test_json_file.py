"""The ledger stores a description of each step."""

import pytest

from batchmill import LedgerError
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.storage import LocalStore


@pytest.fixture
def steps(tmp_path):
    return Ledger(LocalStore(tmp_path)).steps


def test_the_first_description_of_a_step_is_kept(steps):
    assert steps.read("abc") is None
    steps.record("abc", {"step": "m:f", "params": {"n": 3}})
    steps.record("abc", {"step": "another"})
    assert steps.read("abc") == {"step": "m:f", "params": {"n": 3}}


@pytest.mark.parametrize("content", ['{"step"', "[]"])
def test_the_error_names_a_damaged_description(steps, tmp_path, content):
    steps.record("abc", {"step": "m:f"})
    (tmp_path / ".batchmill/steps/abc.json").write_text(content)
    with pytest.raises(
        LedgerError, match=r"steps/abc\.json: is damaged, or is not a file of this ledger"
    ):
        steps.read("abc")
