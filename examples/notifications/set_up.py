"""Create automations that send a message if a run fails, or if inputs are not ok.

    python set_up.py custom-webhook/colleagues

The argument is a saved notification block. A second call replaces the automations.
"""

import sys

from prefect.automations import AutomationCore, EventTrigger, SendNotification
from prefect.blocks.abstract import NotificationBlock
from prefect.blocks.core import Block
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL


def automations(block):
    """Return the automations. They send each message through the block with this id."""
    run_failed = AutomationCore(
        name="batchmill: a run failed",
        trigger=EventTrigger(
            expect={"prefect.flow-run.Failed", "prefect.flow-run.Crashed"},
            match={"prefect.resource.id": "prefect.flow-run.*"},
            match_related={
                "prefect.resource.role": "flow",
                "prefect.resource.name": [
                    "preprocess",
                    "infer",
                    "saved-job",
                    "verify-dataset",
                    "watch-source",
                ],
            },
            posture="Reactive",
        ),
        actions=[
            SendNotification(
                block_document_id=block,
                subject="{{ flow_run.name }}: {{ flow_run.state.name }}",
                body="{{ flow_run.state.message }}",
            )
        ],
    )
    # The automation above reports failed runs. This one reports completed runs whose failures are
    # within --max-failures.
    inputs_not_ok = AutomationCore(
        name="batchmill: inputs are not ok",
        trigger=EventTrigger(
            expect={"batchmill.run.finished"},
            match={
                "prefect.resource.id": "batchmill.dataset.*",
                "batchmill.state": "Completed",
                "batchmill.not-ok": "!0",
            },
            posture="Reactive",
        ),
        actions=[
            SendNotification(
                block_document_id=block,
                subject="{{ flow_run.name }}: Completed, with inputs that are not ok",
                body="{{ event.payload.message }}",
            )
        ],
    )
    return run_failed, inputs_not_ok


def refuse(why):
    """Print the reason, and exit with code 2."""
    print(f"set_up.py: {why}", file=sys.stderr)
    sys.exit(2)


def main(arguments):
    if len(arguments) != 1:
        refuse("give one saved notification block, such as custom-webhook/colleagues")
    if not PREFECT_API_URL.value():
        # A temporary server ends before it sends a message.
        refuse("no Prefect server: set PREFECT_API_URL to the address of a permanent server")
    (name,) = arguments
    try:
        block = Block.load(name)
    except ValueError:
        block = None
    if not isinstance(block, NotificationBlock):
        refuse(f"{name}: no saved notification block. `prefect block ls` lists blocks as TYPE/NAME")
    with get_client(sync_client=True) as client:
        for automation in automations(block._block_document_id):
            for before in client.read_automations_by_name(automation.name):
                client.delete_automation(before.id)
            client.create_automation(automation)
            print(f"Created the automation '{automation.name}'.")


if __name__ == "__main__":
    main(sys.argv[1:])
