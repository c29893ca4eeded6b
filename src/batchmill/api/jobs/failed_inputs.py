"""Select inputs of a dataset: failed ones by name, outcome and group, others by their rows."""

from collections.abc import Sequence
from shlex import quote

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.layout import INPUT_COLUMN
from batchmill.core.ledger.lease import check_free
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.open import open_ledger
from batchmill.core.options.conditions import rows_that_meet
from batchmill.core.outcome import FAILURE_KINDS
from batchmill.core.sizes import counted
from batchmill.datasets.publishing.failure_groups import read_failures
from batchmill.datasets.reading.published import read_published
from batchmill.errors import OptionError


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


def release_inputs(
    dataset: str,
    inputs: Sequence[str],
    kinds: Sequence[str],
    groups: Sequence[int] = (),
    where: str = "",
) -> list[str]:
    """Release failed inputs, or those with certain rows. The next run executes them again.

    Args:
        dataset: The dataset's path or URL.
        inputs: As for `failure_table`.
        kinds: As for `failure_table`.
        groups: As for `failure_table`.
        where: A condition on columns. Release the inputs of the published rows that meet it.

    Returns:
        The names of the released inputs.

    Raises:
        OptionError: An input has not failed, or an outcome, a group or a column is unknown.
        LedgerError: A run is using the dataset.
    """
    if where and (inputs or kinds or groups):
        raise OptionError("--where cannot be combined with inputs, --kind or --group. Drop one.")
    ledger = open_ledger(dataset)
    check_free(ledger)
    failed = failure_table(ledger, dataset, inputs, kinds, groups)["input"]
    records = ledger.records(["input", "outcome"])
    # An input with an earlier result is executed when its file is there again and has changed.
    has_result = records["input"].filter(pc.equal(records["outcome"], "ok"))
    missing = failed.filter(pc.is_in(failed, value_set=has_result))
    wanted = _inputs_of_rows(dataset, where) if where else failed
    chosen: list[str] = wanted.filter(pc.invert(pc.is_in(wanted, value_set=missing))).to_pylist()
    if chosen:
        ledger.release(chosen)
    return chosen


def _inputs_of_rows(dataset: str, where: str) -> pa.Array:
    table = read_published(dataset).table
    meets = rows_that_meet(table, where, option="--where", dataset=dataset)
    return pc.unique(table[INPUT_COLUMN].filter(meets)).cast(pa.string())
