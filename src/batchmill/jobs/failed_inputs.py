"""Select the failed inputs of a dataset by name and outcome."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.errors import OptionError
from batchmill.ledger.lease import check_free
from batchmill.ledger.ledger import Ledger
from batchmill.ledger.open import open_ledger
from batchmill.outcome import FAILURE_KINDS
from batchmill.publishing.tables import failure_records


def failure_table(
    ledger: Ledger, dataset: str, inputs: Sequence[str] = (), kinds: Sequence[str] = ()
) -> pa.Table:
    """Return the failed inputs with these names and outcomes. Default: all failed inputs.

    Args:
        ledger: The dataset's ledger.
        dataset: The dataset's path or URL, for messages.
        inputs: Names of inputs. Empty: all names.
        kinds: Outcomes. Empty: all outcomes.

    Returns:
        One row per input, with the columns of failures.csv.

    Raises:
        OptionError: An input has not failed, or an outcome is unknown.
    """
    unknown = sorted(set(kinds) - set(FAILURE_KINDS))
    if unknown:
        raise OptionError(f"--kind {unknown[0]}: expected one of {', '.join(FAILURE_KINDS)}.")
    failed = failure_records(ledger)
    missing = sorted(set(inputs) - set(failed["input"].to_pylist()))
    if missing:
        raise OptionError(
            f"{missing[0]}: is not one of the failed inputs of {dataset}. List them: "
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
    """Release failed inputs, so that the next run retries them. Returns their names.

    Raises:
        OptionError: An input has not failed, or an outcome is unknown.
        LedgerError: A run is using the dataset.
    """
    ledger = open_ledger(dataset)
    check_free(ledger)
    chosen: list[str] = failure_table(ledger, dataset, inputs, kinds)["input"].to_pylist()
    if chosen:
        ledger.release(chosen)
    return chosen
