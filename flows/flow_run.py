"""One run of a flow that a caller in this process waits for."""

from contextlib import ExitStack
from typing import Any

import httpx
from batchmill.flows.infer import infer
from batchmill.flows.preprocess import preprocess
from batchmill.flows.services.api import lost_server_message, shared_api, wait_until_recorded

from batchmill.errors import CancelledError, RunError
from batchmill.execution.shard_process import shard_processes
from batchmill.runs.context import RunContext


def run_flow(model: str, parameters: dict[str, Any], context: RunContext) -> None:
    """Run `infer` for a model, else `preprocess`, with a Prefect server for its duration.

    Raises CancelledError, and RunError if the run does not end as Completed.
    """
    flow = infer if model else preprocess
    with shard_processes() as processes, ExitStack() as api:
        if len(context.prepared.plan.pending) and parameters["cluster"] is None:
            # Now that Prefect has been imported, while the server may still be starting.
            processes.warm_up()
        api.enter_context(shared_api())
        try:
            state: Any = flow(**parameters, return_state=True)
        except httpx.TransportError as error:
            raise RunError(lost_server_message(error)) from error
        ended = context.run and context.prepared.ledger.read_summary(context.run)
        if ended and state.state_details.flow_run_id:
            wait_until_recorded(state.state_details.flow_run_id, context.task_runs)
    if state.is_cancelled():
        raise CancelledError(state.message or "cancelled")
    if not ended:
        state.result()  # Raises what ended the run early.
        raise RunError(f"the run ended as {state.name}: {state.message or 'no reason given'}")
    if not state.is_completed():
        raise RunError(state.message or state.name or "failed")
