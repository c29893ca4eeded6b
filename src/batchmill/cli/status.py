"""`batchmill status` and `report`: count the inputs by outcome, and rebuild the report."""

from shlex import quote

from batchmill.cli.console import console, print_json
from batchmill.cli.options import Dataset, Json
from batchmill.core.layout import REPORT
from batchmill.core.ledger.lease import check_free, holder
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.open import last_run, open_ledger
from batchmill.core.planning.changed_libraries import versions_in
from batchmill.core.sizes import counted, readable_size
from batchmill.datasets.publishing.run_message import RUN_AGAIN, failure_message
from batchmill.datasets.publishing.run_summary import (
    Summary,
    adoption_lines,
    count_contents,
    count_released,
    summarise,
)

_SHOWN_GROUPS = 20


def executed_text(summary: Summary, ledger: Ledger) -> str:
    """Return how many inputs a run executed, and in what time if it has ended.

    The time begins when the run holds the dataset. So the start of Prefect does not count.
    """
    text = f"{summary.executed:,} executed"
    ended = ledger.read_summary(summary.run) if summary.executed else None
    return f"{text} in {ended['seconds']:.1f} s without the start-up" if ended else text


def status(dataset: Dataset, /, *, libraries: bool = False, json: Json = False) -> None:
    """Count the done, failed and pending inputs of a dataset, after or during a run.

    ```
    batchmill status dataset
    batchmill status dataset --libraries
    ```

    Args:
        libraries: Also list the libraries that made the results, with their versions.
    """
    ledger = open_ledger(str(dataset))
    run = last_run(ledger, str(dataset))
    state = ledger.state()
    summary = summarise(ledger, run, state)
    ended = ledger.read_summary(run)
    contents = count_contents(state)
    who = holder(ledger)
    if json:
        print_json(
            {
                **summary.as_json(),
                "ended": ended is not None,
                "going_on": who is not None,
                "seconds": ended["seconds"] if ended else None,
                "outputs": contents.outputs,
                "bytes": contents.bytes,
                "groups": [group._asdict() for group in summary.groups],
                **({"libraries": versions_in(state)} if libraries else {}),
            }
        )
        return
    out = console()
    phase = f" is running ({who})" if who else "" if ended else " did not finish"
    out.print(f"run {summary.run}{phase}: {executed_text(summary, ledger)}")
    message = failure_message(summary, str(dataset), shown_groups=_SHOWN_GROUPS)
    # During a run, the advice to repeat the command would be wrong.
    out.print(message.removesuffix(f"\n{RUN_AGAIN}") if who else message)
    for line in adoption_lines(ledger):
        out.print(line)
    withdrawn = summary.counts.get("withdrawn")
    if withdrawn and not (ended and ended.get("pruned")):
        out.print(
            f"{counted(withdrawn, 'withdrawn input')}, which the manifest of the last run does not "
            "list. The results are not in the tables, and stay until --prune."
        )
    requested = count_released(ledger, state)
    if requested:
        again = counted(requested, "input")
        out.print(f"The next run executes {again} again, because a retry or a repair requested it.")
    elif summary.failed > summary.results_kept and not (who or summary.counts.get("quarantined")):
        retry = f"batchmill retry {quote(str(dataset))}"
        out.print("The next run executes failed inputs whose files, step or params have changed.")
        out.print(f"To execute the others, too: {retry}, and then the same run.")
    if contents.outputs:
        out.print(f"{counted(contents.outputs, 'output file')}, {readable_size(contents.bytes)}")
    for name, versions in versions_in(state).items() if libraries else ():
        each = (f"{version} ({counted(count, 'result')})" for version, count in versions.items())
        out.print(f"{name}: {', '.join(each)}")


def report(dataset: Dataset, /) -> None:
    """Rebuild a dataset's report.html: outcomes, speed, failures and their reasons.

    A run that executes inputs also writes the report when it ends.

    ```
    batchmill report dataset
    ```
    """
    from batchmill.datasets.publishing.report import write_report  # `status` does not need it.

    ledger = open_ledger(str(dataset))
    run = last_run(ledger, str(dataset))
    check_free(ledger)
    write_report(ledger, run, str(dataset))
    console().print(ledger.store.url_of(REPORT))
