"""Run a flow in this process and wait for its end."""

from contextlib import ExitStack
from typing import Any

import httpx
from prefect.exceptions import TerminationSignal

from batchmill.errors import CancelledError, RunError
from batchmill.flows.infer import infer
from batchmill.flows.preprocess import preprocess
from batchmill.orchestration.interrupts import interrupts
from batchmill.orchestration.server.api import lost_server_message, shared_api, wait_until_recorded
from batchmill.runs.context import RunContext
from batchmill.shards.process import shard_processes


def run_flow(model: str, parameters: dict[str, Any], context: RunContext) -> None:
    """Run the flow `infer` if there is a model, else `preprocess`. Provide a Prefect server.

    Args:
        model: The model; empty for `preprocess`.
        parameters: The parameters of the flow.
        context: The prepared job. The flow run sets its run number.

    Raises:
        CancelledError: The run was cancelled.
        RunError: The run did not end as Completed.
    """
    flow = infer if model else preprocess
    with interrupts() as signals, shard_processes() as processes, ExitStack() as api:
        if len(context.prepared.plan.pending) and parameters["cluster"] is None:
            # The shard processes start while the server is still starting.
            processes.warm_up()
        api.enter_context(shared_api())
        try:
            # An exception of a signal handler could leave the flow run without a final state.
            signals.defer()
            state: Any = flow(**parameters, return_state=True)
        except TerminationSignal as error:  # Prefect's handler of SIGTERM raises it.
            raise CancelledError("The flow run had not begun.") from error
        except httpx.TransportError as error:
            raise RunError(lost_server_message(error)) from error
        ended = context.run and context.prepared.ledger.read_summary(context.run)
        if ended and state.state_details.flow_run_id:
            wait_until_recorded(state.state_details.flow_run_id, context.task_runs)
    if state.is_cancelled():
        raise CancelledError(state.message or "cancelled")
    if not ended:
        state.result()  # Raises the error that ended the run early.
        raise RunError(f"the run ended as {state.name}: {state.message or 'no reason given'}")
    if not state.is_completed():
        raise RunError(state.message or state.name or "failed")
