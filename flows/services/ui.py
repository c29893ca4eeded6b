"""Prefect's UI on the temporary server."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from batchmill.flows.services.embedded_server import embedded_server, find_server
from batchmill.flows.services.server_process import HOST
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, PREFECT_UI_URL

from batchmill.errors import OptionError, ServiceError
from batchmill.storage.urls import hide_secrets

_LOOK_SECONDS = 2.0
_POLL_SECONDS = 0.1
_HIGHEST_PORT = 65535


class ServedUI(NamedTuple):
    """The UI of a server that runs; `home` is Prefect's folder."""

    address: str
    home: Path

    def wait(self, stopped: Callable[[], bool]) -> None:
        """Wait until `stopped` returns true. Raises ServiceError if the server ends before."""
        while find_server(self.home):
            next_look = time.monotonic() + _LOOK_SECONDS
            while time.monotonic() < next_look:
                if stopped():
                    return
                time.sleep(_POLL_SECONDS)
        raise ServiceError(
            f"The Prefect server at {self.address} has ended. Start it again: batchmill ui"
        )


def configured_ui() -> str | None:
    """Return the UI's address of the server that the settings name; None if they name none."""
    if not PREFECT_API_URL.value():
        return None
    return hide_secrets(str(PREFECT_UI_URL.value()))


@contextmanager
def serving_ui(port: int) -> Iterator[ServedUI]:
    """Serve the UI within the block, at `port` unless a temporary server runs at another.

    Raises OptionError if no server can be started at the port, and ServiceError.
    """
    home = PREFECT_HOME.value()
    if not 0 < port <= _HIGHEST_PORT:
        raise OptionError(f"--port {port}: expected a number from 1 to {_HIGHEST_PORT}.")
    if not find_server(home):
        _check_is_free(port)
    with embedded_server(home, port) as url:
        yield ServedUI(url.removesuffix("/api"), home)


def _check_is_free(port: int) -> None:
    with socket.socket() as probe:
        # As the server does: a connection that has just ended is no reason to refuse.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise OptionError(
                f"--port {port}: cannot be used ({error.strerror}). If a Prefect server of yours "
                f"runs there, open http://{HOST}:{port}. Otherwise give another port: "
                f"batchmill ui --port {port % _HIGHEST_PORT + 1}"
            ) from error
