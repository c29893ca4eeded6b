"""Begin the slow parts of `run` and `infer` before their imports."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from batchmill.layout import LEDGER_FOLDER
from batchmill.orchestration.server.embedded_server import preparing_server
from batchmill.urls import is_url, without_file_scheme


@contextmanager
def starting_run(output: str | os.PathLike[str], *, verbose: bool) -> Iterator[None]:
    """Set the log level. Unless the dataset is in an existing folder, prepare Prefect's server.

    The temporary server writes nothing before the checks of the run have passed. A run over an
    existing dataset may have nothing to do, and then it needs no server. If its dataset is in a
    folder, it soon knows, and starts the server after it has made its plan. A plan of a bucket
    takes about as long as the imports of the server's process. So they are done at the same time.

    Args:
        output: The path or URL of the dataset. Empty: the run needs a server in any case.
        verbose: Show the log of Prefect, and batchmill's own log in detail.
    """
    if verbose:
        logging.getLogger("batchmill").setLevel(logging.DEBUG)
    else:
        # Keeps Prefect's log off the terminal. Its API gets the log in any case.
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
        os.environ.setdefault("DO_NOT_TRACK", "1")
    place = without_file_scheme(os.fspath(output))
    is_known_soon = not is_url(place) and os.path.exists(os.path.join(place, LEDGER_FOLDER))
    with nullcontext() if is_known_soon and place else preparing_server():
        yield
