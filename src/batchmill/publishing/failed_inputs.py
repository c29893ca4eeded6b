"""The failed inputs of a dataset, chosen by name and outcome."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.errors import OptionError
from batchmill.ledger.lease import check_free
from batchmill.ledger.ledger import Ledger
from batchmill.ledger.open import open_ledger
from batchmill.outcome import KINDS
from batchmill.publishing.tables import failure_records

# Outcomes that a failed input may have.
FAILURE_KINDS = tuple(kind for kind in KINDS if kind not in ("ok", "cancelled"))


def failure_table(
    ledger: Ledger, dataset: str, inputs: Sequence[str] = (), kinds: Sequence[str] = ()
) -> pa.Table:
    """Return the failed inputs with these names and outcomes; by default all.

    Raises OptionError for an input that has not failed, and for an unknown outcome.
    """
    unknown = sorted(set(kinds) - set(FAILURE_KINDS))
    if unknown:
        raise OptionError(f"--kind {unknown[0]}: expected one of {', '.join(FAILURE_KINDS)}.")
    failed = failure_records(ledger)
    missing = sorted(set(inputs) - set(failed["input"].to_pylist()))
    if missing:
        raise OptionError(
            f"{missing[0]}: is not one of the failed inputs of {dataset}. To list them: "
            f"batchmill failures {dataset}"
        )
    if inputs:
        names = pa.array(list(inputs), pa.string())
        failed = failed.filter(pc.is_in(failed["input"], value_set=names))
    if kinds:
        outcomes = pa.array(list(kinds), pa.string())
        failed = failed.filter(pc.is_in(failed["outcome"], value_set=outcomes))
    return failed


def release_failures(dataset: str, inputs: Sequence[str], kinds: Sequence[str]) -> list[str]:
    """Release failed inputs, so that the next run executes them; return their names.

    Raises OptionError as `failure_table` does, and LedgerError while a run uses the dataset.
    """
    ledger = open_ledger(dataset)
    check_free(ledger)
    chosen: list[str] = failure_table(ledger, dataset, inputs, kinds)["input"].to_pylist()
    if chosen:
        ledger.release(chosen)
    return chosen
