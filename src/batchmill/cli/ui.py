"""`batchmill ui`: show Prefect's UI with the runs of this machine."""

import os
import signal

from batchmill.cli.console import console
from batchmill.orchestration.interrupts import SIGNALS, restoring_handlers

PREFECT_PORT = 4200


def ui(*, port: int = PREFECT_PORT) -> None:
    """Serve Prefect's UI with the runs of this machine, and print its address.

    The UI shows earlier runs and new runs. Ctrl-C or SIGTERM ends the command with exit code 0. If
    a run or another `batchmill ui` has started a server, the command uses that server. If
    PREFECT_API_URL is set, the command only prints the address of that server's UI.

    ```
    batchmill ui
    batchmill ui --port 4201
    ```

    Args:
        port: Port of a new server. A running server keeps its port.
    """
    os.environ.setdefault("DO_NOT_TRACK", "1")
    told = console(stderr=True)
    told.print("starting Prefect ...")
    # Imported here because it imports Prefect, which takes a second or two.
    from batchmill.orchestration.server.ui import configured_ui, serving_ui

    out = console()
    configured = configured_ui()
    if configured:
        out.print(f"Prefect's UI: {configured} (from PREFECT_API_URL)")
        return
    received: list[int] = []
    with restoring_handlers(), serving_ui(port) as served:
        # The handlers raise no exception: it would be lost inside a `__del__` method.
        for number in SIGNALS:
            signal.signal(number, lambda number, _: received.append(number))
        out.print(f"Prefect's UI: {served.address} (until Ctrl-C)")
        out.print(f"Password: {served.auth}")
        served.wait(lambda: bool(received))
    told.print("Ended. The server stops when no run and no other `batchmill ui` uses it.")
