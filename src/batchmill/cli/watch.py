"""`batchmill watch`: announce new files in a folder or bucket to Prefect."""

import math
import os
from typing import Annotated

from cyclopts import Parameter

from batchmill.cli.options import Json, Place
from batchmill.errors import OptionError
from batchmill.options.groups import WATCH_MIN_AGE


def watch(
    source: Annotated[Place, Parameter(help="A folder, or a bucket prefix: s3://BUCKET/PREFIX.")],
    /,
    *,
    deployment: Annotated[
        str,
        Parameter(
            help="The deployment to run, such as preprocess/on-arrival. Files that its dataset "
            "already contains are not announced. Without a deployment, nothing runs unless one of "
            "your automations responds to the event.",
        ),
    ] = "",
    pattern: Annotated[
        str,
        Parameter(
            help="Announce only files whose name or relative path matches this glob, or one of "
            "several, separated by commas. Default: the deployment's pattern, or all files."
        ),
    ] = "",
    min_age: Annotated[
        float,
        Parameter(help="A file counts as complete after this number of seconds without a change."),
    ] = WATCH_MIN_AGE,
    every: Annotated[
        float,
        Parameter(help="Seconds between two listings. If a listing takes long, more seconds."),
    ] = 10,
    json: Json = False,
) -> None:
    """Watch a folder or bucket, and announce new files to Prefect, which runs a deployment.

    Needs a Prefect server (PREFECT_API_URL). Ctrl-C or SIGTERM ends the command with
    exit code 0. Examples:

    ```
    batchmill watch /data/recordings --deployment preprocess/on-arrival
    batchmill watch s3://bucket/recordings --deployment preprocess/on-arrival --every 60
    ```
    """
    if not (math.isfinite(every) and every > 0):
        raise OptionError(f"--every {every}: expected a number of seconds, more than 0.")
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault("DO_NOT_TRACK", "1")
    # Imported here because they import Prefect, which takes a second or two.
    from batchmill.cli.watch_session import WatchSession
    from batchmill.orchestration.arrivals.watch_target import check_server, watched

    check_server()
    target = watched(str(source), deployment=deployment, pattern=pattern, min_age=min_age)
    WatchSession(target, every_seconds=every, as_json=json).run()
