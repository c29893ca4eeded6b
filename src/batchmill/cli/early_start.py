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
    """Set the log level. If the dataset is new, prepare Prefect's temporary server for the block.

    The server writes nothing before the checks of the run have passed. A run over an existing
    dataset may have nothing to do, and then it needs no server. Such a run starts the server after
    it has made its plan. The same applies to a bucket, because only a request would show whether
    its dataset is new.

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
    with preparing_server() if _is_new(os.fspath(output)) else nullcontext():
        yield


def _is_new(output: str) -> bool:
    place = without_file_scheme(output)
    if not place:
        return True
    return not is_url(place) and not os.path.exists(os.path.join(place, LEDGER_FOLDER))
