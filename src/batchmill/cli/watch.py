"""`batchmill watch`: announce new files in a folder or bucket to Prefect."""

import math
import signal
import time
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from batchmill.cli.console import console, hide_prefect_log, print_json
from batchmill.cli.options import Json, Place
from batchmill.core.options.job_options import WATCH_MIN_AGE
from batchmill.core.outcome import visible
from batchmill.core.sizes import counted, readable_size
from batchmill.errors import BatchmillError, OptionError
from batchmill.orchestration.interrupts import SIGNALS, restoring_handlers

if TYPE_CHECKING:
    from batchmill.orchestration.arrivals.watch_target import WatchTarget
    from batchmill.orchestration.arrivals.watching import SourceWatcher

_SHOWN_NAMES = 3


def watch(
    source: Place,
    /,
    *,
    deployment: str = "",
    pattern: str = "",
    min_age: float = WATCH_MIN_AGE,
    every: float = 10,
    json: Json = False,
) -> None:
    """Watch a folder or bucket, and announce new files to Prefect, which runs a deployment.

    Needs a Prefect server (PREFECT_API_URL). Ctrl-C or SIGTERM ends the command with
    exit code 0. Examples:

    ```
    batchmill watch /data/recordings --deployment preprocess/on-arrival
    batchmill watch s3://bucket/recordings --deployment preprocess/on-arrival --every 60
    ```

    Args:
        source: A folder, or a bucket prefix: s3://BUCKET/PREFIX.
        deployment: The deployment to run, such as preprocess/on-arrival. Files that its
            dataset already contains are not announced. Without a deployment, nothing runs
            unless one of your automations responds to the event.
        pattern: Announce only files whose name or relative path matches this glob, or one
            of several, separated by commas. Default: the deployment's pattern, or all
            files.
        min_age: A file counts as complete after this number of seconds without a change.
        every: Seconds between two listings. If a listing takes long, more seconds.
    """
    if not (math.isfinite(every) and every > 0):
        raise OptionError(f"--every {every}: expected a number of seconds, more than 0.")
    hide_prefect_log()
    # Imported here because they import Prefect, which takes a second or two.
    from batchmill.orchestration.arrivals.watch_target import check_server, watched

    check_server()
    target = watched(str(source), deployment=deployment, pattern=pattern, min_age=min_age)
    _watch(target, every, as_json=json)


def _watch(target: "WatchTarget", every_seconds: float, *, as_json: bool) -> None:
    """Watch a source until Ctrl-C or SIGTERM, and print what is announced.

    Raises BatchmillError if the source cannot be read at the start.
    """
    from batchmill.orchestration.arrivals.watch_target import read_recorded_versions
    from batchmill.orchestration.arrivals.watching import SourceWatcher

    known, unknown_reason = {}, ""
    if target.deployment:
        try:
            known = read_recorded_versions(target)
        except BatchmillError as error:
            unknown_reason = str(error)
    watcher = SourceWatcher(
        target,
        every_seconds=every_seconds,
        known=known,
        report=partial(_print_announcement, target.deployment, as_json),
        warn=_warn,
    )
    # Files that are not announced at a KeyboardInterrupt are announced at the next start.
    with restoring_handlers(), suppress(KeyboardInterrupt):
        # Until the first listing is complete, both signals interrupt it.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        watcher.start()
        # From now on, a handler requests the stop. An exception could be lost, for example in
        # the `__del__` of some library.
        for number in SIGNALS:
            signal.signal(number, partial(_stop, watcher))
        _print_start(target, every_seconds, unknown_reason)
        watcher.run()
    console(stderr=True).print(
        "Stopped watching. Files that are not announced yet are announced at the next start."
    )


def _stop(watcher: "SourceWatcher", number: int, _frame: FrameType | None) -> None:
    """Stop after the current action. A second signal interrupts it."""
    signal.signal(number, signal.default_int_handler)
    watcher.stop()


def _print_start(target: "WatchTarget", every_seconds: float, unknown_reason: str) -> None:
    from batchmill.orchestration.arrivals.watching import ARRIVED
    from batchmill.orchestration.server.api import resource_id

    # Announcements are the command's result. Everything else goes to stderr.
    messages = console(stderr=True)
    messages.print(
        f"Watching {target.source} every {every_seconds:g} s. Files are announced after "
        f"{target.min_age:g} s without a change. Press Ctrl-C to stop."
    )
    if unknown_reason:
        messages.print(f"All existing files are announced: {unknown_reason}")
    if not target.deployment:
        _warn(
            "no deployment is named, so nothing runs unless one of your automations responds to "
            f"the event {ARRIVED} of {resource_id('source', target.source)}. To name a deployment: "
            "--deployment preprocess/on-arrival"
        )
    if not target.has_automation:
        _warn(
            f"{target.deployment}: no automation runs it. Add a trigger. For an example, see "
            "preprocess/on-arrival in prefect.yaml."
        )


def _warn(text: str) -> None:
    console(stderr=True).print(f"batchmill: {text}", style="red")


def _print_announcement(deployment: str, as_json: bool, payload: dict[str, Any]) -> None:
    if as_json:
        print_json(payload | {"deployment": deployment})
        return
    count, names = payload["count"], payload["first"][:_SHOWN_NAMES]
    more = ", ..." if count > len(names) else ""
    receiver = f" to {deployment}" if deployment else ""
    line = (
        f"{time.strftime('%Y-%m-%d %H:%M:%S')} {counted(count, 'new file')} "
        f"({readable_size(payload['bytes'])}) announced{receiver}: {', '.join(names)}{more}"
    )
    console().print(visible(line))
