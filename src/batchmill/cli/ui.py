"""`batchmill ui`: Prefect's UI, with the runs of this machine."""

import os
import signal
from typing import Annotated

from cyclopts import Parameter

from batchmill.cli.console import console

PREFECT_PORT = 4200


def ui(
    *,
    port: Annotated[
        int, Parameter(help="The port of a server that has to be started.")
    ] = PREFECT_PORT,
) -> None:
    """Serve Prefect's UI with all runs of this machine, and print its address.

    The history of runs is kept in the Prefect database of the user, with or without a server of
    their own. Runs that start while the UI is open appear in it. Ctrl-C or SIGTERM stops it, with
    exit code 0. If PREFECT_API_URL names a server, only the address of its UI is printed.

    ```
    batchmill ui
    batchmill ui --port 4201
    ```
    """
    os.environ.setdefault("DO_NOT_TRACK", "1")
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
            out.print(f"Prefect's UI: {served.address} (Ctrl-C stops it)")
            served.wait(lambda: bool(received))
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    console(stderr=True).print("Stopped. A run that uses the server keeps it until its end.")
