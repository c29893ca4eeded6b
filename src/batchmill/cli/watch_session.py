"""One session of `batchmill watch`: its signals, its messages and its watcher."""

import json
import signal
import time
from contextlib import suppress
from types import FrameType
from typing import Any

from batchmill.cli.console import console
from batchmill.errors import BatchmillError
from batchmill.orchestration.arrivals.detection import FileVersion
from batchmill.orchestration.arrivals.watch_target import WatchTarget, read_recorded_versions
from batchmill.orchestration.arrivals.watching import ARRIVED, SourceWatcher
from batchmill.orchestration.interrupts import SIGNALS, restoring_handlers
from batchmill.orchestration.server.api import resource_id
from batchmill.outcome import visible
from batchmill.sizes import counted, readable_size

_SHOWN_NAMES = 3


class WatchSession:
    """Watches a source until Ctrl-C or SIGTERM, and prints what it announces."""

    def __init__(self, target: WatchTarget, *, every_seconds: float, as_json: bool) -> None:
        """Read the files that are already known. `run` starts to watch.

        Args:
            target: The source, and the deployment to run.
            every_seconds: The pause between two listings.
            as_json: True to print one JSON document per announcement.
        """
        self._target = target
        self._every = every_seconds
        self._as_json = as_json
        # Announcements are the command's result. Everything else goes to stderr.
        self._out, self._messages = console(), console(stderr=True)
        known: dict[str, FileVersion] = {}
        self._unknown_reason = ""
        if target.deployment:
            try:
                known = read_recorded_versions(target)
            except BatchmillError as error:
                self._unknown_reason = str(error)
        self._watcher = SourceWatcher(
            target,
            every_seconds=every_seconds,
            known=known,
            report=self._print_announcement,
            warn=self._warn,
        )

    def run(self) -> None:
        """Watch until a signal arrives.

        Raises:
            BatchmillError: The source cannot be read at the start.
        """
        # Files that are not announced at a KeyboardInterrupt are announced at the next start.
        with restoring_handlers(), suppress(KeyboardInterrupt):
            # Until the first listing is complete, both signals interrupt it.
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            self._watcher.start()
            # From now on, a handler requests the stop. An exception could be lost, for example in
            # the `__del__` of some library.
            for number in SIGNALS:
                signal.signal(number, self._handle_signal)
            self._print_start()
            self._watcher.run()
        self._messages.print(
            "Stopped watching. Files that are not announced yet are announced at the next start."
        )

    def _handle_signal(self, number: int, _frame: FrameType | None) -> None:
        """Stop after the current action. A second signal interrupts it."""
        signal.signal(number, signal.default_int_handler)
        self._watcher.stop()

    def _print_start(self) -> None:
        target = self._target
        self._messages.print(
            f"Watching {target.source} every {self._every:g} s. Files are announced after "
            f"{target.min_age:g} s without a change. Press Ctrl-C to stop."
        )
        if self._unknown_reason:
            self._messages.print(f"All existing files are announced: {self._unknown_reason}")
        if not target.deployment:
            self._warn(_no_deployment(target.source))
        if not target.has_automation:
            self._warn(
                f"{target.deployment}: no automation runs it. Add a trigger. For an example, see "
                "preprocess/on-arrival in prefect.yaml."
            )

    def _print_announcement(self, payload: dict[str, Any]) -> None:
        deployment = self._target.deployment
        if self._as_json:
            announced = payload | {"deployment": deployment}
            print(json.dumps(announced, ensure_ascii=False), flush=True)
        else:
            self._out.print(_line(payload, deployment))

    def _warn(self, text: str) -> None:
        self._messages.print(f"batchmill: {text}", style="red")


def _no_deployment(source: str) -> str:
    return (
        "no deployment is named, so nothing runs unless one of your automations responds to the "
        f"event {ARRIVED} of {resource_id('source', source)}. To name a deployment: "
        "--deployment preprocess/on-arrival"
    )


def _line(payload: dict[str, Any], deployment: str) -> str:
    count, names = payload["count"], payload["first"][:_SHOWN_NAMES]
    files = counted(count, "new file")
    more = ", ..." if count > len(names) else ""
    receiver = f" to {deployment}" if deployment else ""
    return visible(
        f"{time.strftime('%Y-%m-%d %H:%M:%S')} {files} ({readable_size(payload['bytes'])}) "
        f"announced{receiver}: {', '.join(names)}{more}"
    )
