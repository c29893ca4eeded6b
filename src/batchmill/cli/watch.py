"""`batchmill watch`: tells Prefect of new files in a folder or bucket."""

import json as json_text
import math
import os
import signal
import time
from types import FrameType
from typing import Annotated, Any

from cyclopts import Parameter

from batchmill.cli.console import console
from batchmill.cli.options import Json
from batchmill.errors import BatchmillError, OptionError
from batchmill.outcome import visible
from batchmill.sizes import readable_size
from batchmill.storage import is_url

_SHOWN_NAMES = 3


def watch(
    source: Annotated[str, Parameter(help="A folder, or a bucket's prefix: s3://BUCKET/PREFIX.")],
    /,
    *,
    deployment: Annotated[
        str,
        Parameter(
            show_default=False,
            help="The deployment that is to run, as preprocess/on-arrival. What its dataset has "
            "already is not announced. Without one, nothing runs unless an automation of yours "
            "waits for the event.",
        ),
    ] = "",
    pattern: Annotated[
        str | None,
        Parameter(help="Only files whose name or path fits. Default: the deployment's, or all."),
    ] = None,
    settle: Annotated[
        float,
        Parameter(help="Seconds without a change after which a file counts as whole."),
    ] = 60,
    every: Annotated[
        float, Parameter(help="Seconds between two looks at a bucket, or with --poll.")
    ] = 10,
    poll: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Look at a folder every so often, without file-system events: network file "
            "systems have none.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Watch a folder or bucket, and announce new files to Prefect, where a deployment runs on them.

    Needs a Prefect server (PREFECT_API_URL). Ctrl-C or SIGTERM ends it, with exit code 0. Examples:

    ```
    batchmill watch /data/recordings --deployment preprocess/on-arrival
    batchmill watch s3://bucket/recordings --deployment preprocess/on-arrival --every 60
    ```
    """
    if not (math.isfinite(every) and every > 0):
        raise OptionError(f"--every {every}: expected a number of seconds, more than 0.")
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault("DO_NOT_TRACK", "1")
    # Imported now, for this takes a second or two.
    from batchmill.flows.arrivals.folder_watcher import FolderWatcher
    from batchmill.flows.arrivals.watch_target import check_server, known_of, watched
    from batchmill.flows.arrivals.watching import Watching

    check_server()
    found = watched(source, deployment=deployment, pattern=pattern, settle_seconds=settle)
    told, out = console(stderr=True), console()
    known, unknown = {}, ""
    if deployment:
        try:
            known = known_of(found)
        except BatchmillError as error:
            unknown = f"All that is there is announced: {error}"

    def tell(payload: dict[str, Any]) -> None:
        if json:
            announced = payload | {"deployment": deployment}
            print(json_text.dumps(announced, ensure_ascii=False), flush=True)
        else:
            out.print(_line(payload, deployment))

    bell = None if poll or is_url(found.source) else FolderWatcher(found.source)
    watching = Watching(
        found,
        every_seconds=every,
        bell=bell,
        known=known,
        tell=tell,
        complain=lambda text: told.print(f"batchmill: {text}", style="red"),
    )
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def end(number: int, _frame: FrameType | None) -> None:
        """End when what it is at is done; a second signal ends it at once."""
        signal.signal(number, signal.default_int_handler)
        watching.end()

    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        watching.begin()
        # Where an exception may be lost, as in somebody's `__del__`, a request is not.
        for number in handlers:
            signal.signal(number, end)
        how = "told of changes" if bell else f"looks for changes every {every:g} s"
        told.print(
            f"Watching {visible(found.source)} ({how}; a file is whole after "
            f"{found.settle_seconds:g} s without one); Ctrl-C ends it."
        )
        if unknown:
            told.print(visible(unknown))
        if not deployment:
            told.print(f"batchmill: {visible(_nobody_named(found.source))}", style="red")
        if not found.listens:
            told.print(
                f"batchmill: {deployment}: no automation runs it. Give it a trigger, as that of "
                "preprocess/on-arrival in prefect.yaml.",
                style="red",
            )
        watching.run()
    except KeyboardInterrupt:
        pass  # Nothing is lost that is not announced.
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if bell:
            bell.close()
    told.print("Watching has ended. What is not announced yet will be when it is started again.")


def _nobody_named(source: str) -> str:
    """Say what comes of announcements that name no deployment, and how to name one."""
    from batchmill.flows.arrivals.event import ARRIVED
    from batchmill.flows.resources import resource_id

    return (
        f"no deployment is named, so nothing runs unless an automation of yours waits for the "
        f"event {ARRIVED} of {resource_id('source', source)}. To name one: "
        "--deployment preprocess/on-arrival"
    )


def _line(payload: dict[str, Any], deployment: str) -> str:
    count, names = payload["count"], payload["first"][:_SHOWN_NAMES]
    files = "1 new file" if count == 1 else f"{count:,} new files"
    more = ", ..." if count > len(names) else ""
    whom = f" to {deployment}" if deployment else ""
    return visible(
        f"{time.strftime('%Y-%m-%d %H:%M:%S')} {files} ({readable_size(payload['bytes'])}) "
        f"announced{whom}: {', '.join(names)}{more}"
    )
