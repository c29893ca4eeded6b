"""Select the failed inputs of a dataset by name, outcome and group."""

from collections.abc import Sequence
from shlex import quote

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.errors import OptionError
from batchmill.ledger.lease import check_free
from batchmill.ledger.ledger import Ledger
from batchmill.ledger.open import open_ledger
from batchmill.outcome import FAILURE_KINDS
from batchmill.publishing.failure_groups import read_failures
from batchmill.sizes import counted


def failure_table(
    ledger: Ledger,
    dataset: str,
    inputs: Sequence[str] = (),
    kinds: Sequence[str] = (),
    groups: Sequence[int] = (),
) -> pa.Table:
    """Return the failed inputs with these names and outcomes. Default: all failed inputs.

    Args:
        ledger: The dataset's ledger.
        dataset: The dataset's path or URL, for messages.
        inputs: Names of inputs. Empty: all names.
        kinds: Outcomes. Empty: all outcomes.
        groups: Numbers of groups of failures with the same cause. Empty: all groups.

    Returns:
        One row per input, with the columns of failures.csv.

    Raises:
        OptionError: An input has not failed, or an outcome or a group is unknown.
    """
    unknown = sorted(set(kinds) - set(FAILURE_KINDS))
    if unknown:
        raise OptionError(f"--kind {unknown[0]}: expected one of {', '.join(FAILURE_KINDS)}.")
    failed, known = read_failures(ledger.state())
    wrong = [group for group in groups if not 1 <= group <= len(known)]
    if wrong:
        raise OptionError(
            f"--group {wrong[0]}: {dataset} has {counted(len(known), 'group')} of failed inputs. "
            f"List them: batchmill status {quote(dataset)}"
        )
    missing = sorted(set(inputs) - set(failed["input"].to_pylist()))
    if missing:
        raise OptionError(
            f"{missing[0]}: is not one of the failed inputs of {dataset}. List them: "
            f"batchmill failures {quote(dataset)}"
        )
    for column, chosen in (("input", inputs), ("outcome", kinds), ("group", groups)):
        if chosen:
            wanted = pa.array(list(chosen), failed.schema.field(column).type)
            failed = failed.filter(pc.is_in(failed[column], value_set=wanted))
    return failed


def release_failures(
    dataset: str, inputs: Sequence[str], kinds: Sequence[str], groups: Sequence[int] = ()
) -> list[str]:
    """Release failed inputs, so that the next run retries them. Returns their names.

    Raises:
        OptionError: An input has not failed, or an outcome or a group is unknown.
        LedgerError: A run is using the dataset.
    """
    ledger = open_ledger(dataset)
    check_free(ledger)
    failed = failure_table(ledger, dataset, inputs, kinds, groups)["input"]
    records = ledger.records(["input", "outcome"])
    # An input with an earlier result is executed when its file is there again and has changed.
    missing = records["input"].filter(pc.equal(records["outcome"], "ok"))
    chosen: list[str] = failed.filter(pc.invert(pc.is_in(failed, value_set=missing))).to_pylist()
    if chosen:
        ledger.release(chosen)
    return chosen
