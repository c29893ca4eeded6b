"""`batchmill ui`: Prefect's UI, with the runs of this machine."""

import os
import signal
from typing import Annotated

from cyclopts import Parameter

from batchmill.cli.console import console

PREFECT_PORT = 4200


def ui(
    *,
    port: Annotated[int, Parameter(help="The port, if no server runs yet.")] = PREFECT_PORT,
) -> None:
    """Show Prefect's UI with the runs of this machine: print its address, and serve it.

    It has all earlier runs, and those that start meanwhile. Ctrl-C or SIGTERM ends it, with exit
    code 0. If a run or another `batchmill ui` has started a server, it uses that one, at that one's
    port. If PREFECT_API_URL names a server, only the address of its UI is printed.

    ```
    batchmill ui
    batchmill ui --port 4201
    ```
    """
    os.environ.setdefault("DO_NOT_TRACK", "1")
    told = console(stderr=True)
    told.print("starting Prefect ...")
    # Imported now, because Prefect takes a second or two.
    from batchmill.flows.services.ui import configured_ui, serving_ui

    out = console()
    configured = configured_ui()
    if configured:
        out.print(f"Prefect's UI: {configured} (of the server that PREFECT_API_URL names)")
        return
    received: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = {number: signal.getsignal(number) for number in numbers}
    try:
        with serving_ui(port) as served:
            # Not an exception: one that is raised in somebody's `__del__` is lost.
            for number in numbers:
                signal.signal(number, lambda number, _: received.append(number))
            out.print(f"Prefect's UI: {served.address} (until Ctrl-C)")
            served.wait(lambda: bool(received))
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    told.print("Ended. The server stops when no run and no other `batchmill ui` uses it.")
