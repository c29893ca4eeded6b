"""What a run waits for longest, begun before Prefect is imported.

Imports no Prefect itself: the two seconds that takes are what is gained.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from batchmill.flows.services.embedded_server import embedded_server
from batchmill.flows.services.private_ray import private_ray
from batchmill.flows.services.settings_files import may_have_server, may_have_settings, prefect_home

from batchmill.errors import ServiceError


@contextmanager
def early_start() -> Iterator[None]:
    """Begin to start a private Ray and, where no Prefect API is configured, the temporary server.

    Flows within the block find both, and wait for them; what keeps them from starting, they tell.
    """
    with private_ray() as ray, ExitStack() as stack:
        ray.start()
        # Where its folder may be another, it is not for us to make one.
        if not may_have_server() and not may_have_settings("home"):
            stack.enter_context(_server(prefect_home()))
        yield


@contextmanager
def _server(home: Path) -> Iterator[None]:
    """Use the temporary server in a thread, which starts it if it does not run."""
    started, over = threading.Event(), threading.Event()

    def use() -> None:
        # Who needs it tries again, and says why it cannot be had.
        with suppress(ServiceError, OSError), embedded_server(home):
            started.set()
            over.wait()

    thread = threading.Thread(target=use, name="early-server", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        # A server that nobody came to use ends by itself when this process does.
        if started.is_set():
            thread.join()
