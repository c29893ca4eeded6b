"""Prefect's UI on the temporary server."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from prefect.settings import PREFECT_API_URL, PREFECT_HOME, PREFECT_UI_URL

from batchmill.core.urls import hide_secrets
from batchmill.errors import OptionError, ServiceError
from batchmill.orchestration.server.embedded_server import embedded_server, is_running
from batchmill.orchestration.server.server_process import HOST, bound_socket

_POLL_SECONDS = 0.2
_HIGHEST_PORT = 65535


class ServedUI(NamedTuple):
    """The UI of a running server.

    Attributes:
        address: The URL of the UI.
        auth: The credentials that the UI requests, as USER:PASSWORD.
        home: Prefect's folder (PREFECT_HOME).
    """

    address: str
    auth: str
    home: Path

    def wait(self, stopped: Callable[[], bool]) -> None:
        """Wait until `stopped` returns true.

        Raises:
            ServiceError: The server ended before.
        """
        while not stopped():
            if not is_running(self.home):
                raise ServiceError(
                    f"The Prefect server at {self.address} has stopped. Start it again: "
                    "batchmill ui"
                )
            time.sleep(_POLL_SECONDS)


def configured_ui() -> str | None:
    """Return the URL of the UI of the configured server. None if no server is configured."""
    if not PREFECT_API_URL.value():
        return None
    return hide_secrets(str(PREFECT_UI_URL.value()))


@contextmanager
def serving_ui(port: int) -> Iterator[ServedUI]:
    """Serve the UI until the block ends.

    Args:
        port: The port of the server. Ignored if a temporary server is running already.

    Raises:
        OptionError: The port cannot be used.
        ServiceError: The server did not start.
    """
    home = PREFECT_HOME.value()
    if not 0 < port <= _HIGHEST_PORT:
        raise OptionError(f"--port {port}: expected a number from 1 to {_HIGHEST_PORT}.")
    if not is_running(home):
        _check_is_free(port)
    with embedded_server(home, port) as server:
        yield ServedUI(server.url.removesuffix("/api"), server.auth, home)


def _check_is_free(port: int) -> None:
    try:
        bound_socket(port).close()
    except OSError as error:
        raise OptionError(
            f"--port {port}: cannot be used ({error.strerror}). If your own Prefect server "
            f"runs there, open http://{HOST}:{port}. Otherwise use another port: "
            f"batchmill ui --port {port % _HIGHEST_PORT + 1}"
        ) from error
