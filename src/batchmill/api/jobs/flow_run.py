"""Run a flow in this process and wait for its end. Its log is hidden from the user."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
from prefect.context import FlowRunContext
from prefect.exceptions import TerminationSignal
from prefect.logging.handlers import PrefectConsoleHandler
from prefect.states import Cancelled

from batchmill.api.jobs.idle_run import JobEnd, failure_of
from batchmill.core.ledger.lease import was_held_here
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.planning.prepare import Prepared
from batchmill.core.planning.run_spec import read_spec
from batchmill.datasets.publishing.run_summary import summarise
from batchmill.errors import CancelledError, LedgerError, RunError, StoreError
from batchmill.flows.preprocess import preprocess
from batchmill.orchestration.interrupts import interrupts
from batchmill.orchestration.server.api import end_flow_run, shared_api, shown_api
from batchmill.runs.shards.process_pool import shard_processes


def run_flow(model: str, parameters: dict[str, Any], prepared: Prepared) -> JobEnd:
    """Run the flow `infer` if there is a model, else `preprocess`. Provide a Prefect server.

    Args:
        model: The model; empty for `preprocess`.
        parameters: The parameters of the flow.
        prepared: The prepared job.

    Returns:
        How the run ended.

    Raises:
        CancelledError: The run was cancelled.
        RunError: The run ended before its plan was recorded.
    """
    ledger = prepared.ledger
    before = max(ledger.runs(), default=0)
    flow: Any = preprocess
    if model:
        # Prefect needs a tenth of a second for each flow.
        from batchmill.flows.infer import infer

        flow = infer
    with interrupts() as signals, shard_processes() as processes, ExitStack() as api:
        if len(prepared.plan.pending) and parameters["cluster"] is None:
            # The shard processes start while the server is still starting.
            processes.warm_up(prepared.job.output)
        _import_rest()
        api.enter_context(shared_api())
        try:
            # An exception of a signal handler could leave the flow run without a final state.
            signals.defer()
            state: Any = flow(**parameters, return_state=True)
        except TerminationSignal as error:  # Prefect's handler of SIGTERM raises it.
            raise CancelledError("The flow run had not begun.") from error
        except httpx.HTTPError as error:
            return _end_without_server(prepared, before, error)
        flow_run = state.state_details.flow_run_id
        if state.is_cancelling():
            # It was cancelled in Prefect when it was about to end. Prefect accepts no other end.
            state = Cancelled(message="Cancelled in Prefect, when the run was about to end.")
            end_flow_run(flow_run, state)
        run = _run_after(ledger, before, str(flow_run))
    if state.is_cancelled():
        raise CancelledError(state.message or "cancelled")
    if state.is_completed() and run:
        return JobEnd(run)
    try:
        # Without `_sync`, the result is a coroutine in a notebook, because a kernel has an event
        # loop. This raises the error that ended the run early. Too many failures are a text.
        is_ended = run and ledger.read_summary(run)
        details = state.result(raise_on_failure=not is_ended, _sync=True)
    except (RunError, LedgerError, StoreError) as error:
        if not run:
            raise
        if isinstance(error, RunError):
            return JobEnd(run, error)
        # The error is not that of a check: inputs may have been executed.
        raise RunError(str(error)) from error
    except httpx.HTTPError as error:
        return _end_without_server(prepared, before, error)
    if not is_ended:
        # A run that was skipped, for example, has no summary.
        raise RunError(f"the run ended as {state.name}: {state.message or 'no reason given'}")
    return JobEnd(run, RunError(details if isinstance(details, str) else state.message or "failed"))


def _import_rest() -> None:
    """Import what the flow needs at its start and its end, while the server is still starting."""
    import fastapi.encoders  # noqa: F401
    import jinja2  # noqa: F401
    import prefect.utilities.visualization  # noqa: F401


def _end_without_server(prepared: Prepared, before: int, cause: httpx.HTTPError) -> JobEnd:
    """Return the end of a run whose server stopped responding. Its tables may be published.

    Raises:
        RunError: The run ended before its plan was recorded.
    """
    ledger = prepared.ledger
    run = _run_after(ledger, before)
    lost = RunError(
        f"The Prefect server at {shown_api()} stopped responding. Committed results are kept. Run "
        f"the same command again to complete the dataset. ({cause})"
    )
    if not run:
        raise lost from cause
    if ledger.read_summary(run) is None:
        return JobEnd(run, lost)
    failure = failure_of(summarise(ledger, run), prepared.job)
    note = "Prefect's history of this run is incomplete, because its server stopped responding."
    return JobEnd(run, failure, note="" if failure else note)


def _run_after(ledger: Ledger, before: int, flow_run: str = "") -> int:
    """Return the last run after `before` of a flow run, by default of this process; else 0."""
    for run in reversed(ledger.runs()):
        identifier = ledger.control.read_flow_run(run) if run > before else None
        is_found = identifier and flow_run in ("", identifier)
        # While this process waited, another one may have made a run.
        if is_found and (flow_run or was_held_here(read_spec(ledger, run).token)):
            return run
    return 0


@contextmanager
def log_level(*, verbose: bool) -> Iterator[None]:
    """Hide Prefect's own log during the block, or also show batchmill's details if `verbose`.

    The log of a run in a user's own flow stays visible, because the user chose Prefect.
    """
    logger = logging.getLogger("batchmill")
    with ExitStack() as hidden:
        if verbose:
            hidden.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.DEBUG)
        elif FlowRunContext.get() is None:
            for console in logging.getLogger().handlers:
                if isinstance(console, PrefectConsoleHandler):  # It prints to the screen.
                    _hide_log(console, hidden)
        yield


def _hide_log(console: logging.Handler, hidden: ExitStack) -> None:
    """Hide Prefect's log until `hidden` is closed, and show batchmill's warnings.

    On the command line, the level is CRITICAL. A warning of batchmill is for the user.
    """
    level = console.level

    def is_shown(record: logging.LogRecord) -> bool:
        name = record.name.partition(".")[0]
        return name == "batchmill" or (name != "prefect" and record.levelno >= level)

    console.addFilter(is_shown)
    hidden.callback(console.removeFilter, is_shown)
    console.setLevel(min(level, logging.WARNING))
    hidden.callback(console.setLevel, level)
