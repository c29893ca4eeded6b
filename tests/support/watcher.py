"""`batchmill watch` as a process."""

import json
import signal
import sys

from live import wait_for


class Watcher:
    """A watcher that has begun, until `stop` or `kill`."""

    def __init__(self, shell, *arguments):
        self._out = shell.folder / "watch.out"
        self._err = shell.folder / "watch.err"
        command = [sys.executable, "-m", "batchmill", "watch", *arguments, "--json"]
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = shell.start(*command, stdout=out, stderr=err)
        wait_for(self._begun, "the watcher's beginning")

    def _begun(self):
        assert self.process.poll() is None, self.said()
        return "Press Ctrl-C to stop" in self.said()

    def said(self):
        """What it has complained of, and the like."""
        return self._err.read_text()

    def announced(self):
        """What it has announced so far."""
        return [json.loads(line) for line in self._out.read_text().splitlines()]

    def wait(self, count):
        """Wait for so many announcements in all; gives them."""
        return wait_for(
            lambda: len(self.announced()) >= count and self.announced(), f"{count} announcements"
        )

    def stop(self, with_signal=signal.SIGTERM):
        """Ask it to end; gives its exit code."""
        self.process.send_signal(with_signal)
        return self.process.wait(30)
