"""Creates the torch Dataset of a class step, even if its `__init__` fails, hangs or crashes."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from operator import getitem
from types import TracebackType
from typing import Any

from batchmill.core.ledger.ledger import Ledger
from batchmill.errors import StepError
from batchmill.runs.inputs.call_step import make_dataset
from batchmill.runs.inputs.staging import Input
from batchmill.runs.shards.shard_inputs import ShardInputs
from batchmill.runs.workers.processes import end_after

logger = logging.getLogger(__name__)

# A batch step has one torch Dataset for all inputs of a shard. After this number of attempts that
# did not end, the step is at fault, and not a lost node.
_MAX_ATTEMPTS = 3


def create_torch_dataset(
    ledger: Ledger, inputs: ShardInputs, items: Sequence[Input]
) -> tuple[Callable[[int], Any], Any]:
    """Create the torch Dataset of a shard's class step.

    The time limit of one input also limits the creation. When it expires, this process ends, and
    the next attempt at the inputs finds a mark in the ledger. If the class fails for all inputs
    together, each input gets a torch Dataset of its own, in its worker. So one bad file costs one
    input. This does not apply to batch steps.

    Args:
        ledger: The ledger of the dataset.
        inputs: The inputs of the shard.
        items: The same inputs, as passed to the step.

    Returns:
        The function that looks up an item by its index, and the torch Dataset. The torch
        Dataset equals None if each input gets one of its own.

    Raises:
        StepError: The step is a batch step, and its torch Dataset cannot be created.
    """
    step, shard = inputs.step, inputs.shard

    def one_each(index: int) -> Any:
        return make_dataset(step, [items[index]])[0]

    begun = ledger.control.creations(shard.run) if shard.attempt > 1 else []
    unfinished = sum(start < shard.stop and shard.start < stop for start, stop in begun)
    if unfinished and not step.is_batched:
        return one_each, None
    if unfinished >= _MAX_ATTEMPTS:
        raise StepError(
            f"step {step.ref}: its torch Dataset was not created: __init__ took longer than "
            "--timeout, or its process died. Make __init__ faster, or increase --timeout."
        )
    ledger.control.begin_creation(shard.run, shard.start, shard.stop, shard.attempt)
    try:
        with end_after(inputs.spec.policy.timeout_seconds):
            torch_dataset = make_dataset(step, items)
    except BaseException as error:
        if step.is_batched:
            if isinstance(error, StepError):
                raise  # For example, the model is missing. The inputs must not fail for that.
            return partial(_raise, error, error.__traceback__), None
        logger.warning(
            "The torch Dataset of step %s cannot be created for %d inputs together (%s: %s). It is "
            "created for each input.",
            *(step.ref, len(items), type(error).__name__, error),
        )
        return one_each, None
    finally:
        ledger.control.end_creation(shard.run, shard.start, shard.stop, shard.attempt)
    return partial(getitem, torch_dataset), torch_dataset


def _raise(error: BaseException, frames: TracebackType | None, _: int) -> Any:
    # Without `frames`, each input would add its own frames to those of the inputs before.
    raise error.with_traceback(frames)
