"""Run `batchmill watch` in a process."""

import json
import signal
import sys

from harness.live import wait_for


class Watcher:
    """A running watcher. Call `stop` to end it."""

    def __init__(self, shell, *arguments):
        self._out = shell.folder / "watch.out"
        self._err = shell.folder / "watch.err"
        command = [sys.executable, "-m", "batchmill", "watch", *arguments, "--json"]
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = shell.start(*command, stdout=out, stderr=err)
        wait_for(self._begun, "the start of the watcher")

    def _begun(self):
        assert self.process.poll() is None, self.messages()
        return "Press Ctrl-C to stop" in self.messages()

    def messages(self):
        """Return the text on stderr."""
        return self._err.read_text()

    def announced(self):
        """Return the announcements so far."""
        return [json.loads(line) for line in self._out.read_text().splitlines()]

    def wait(self, count):
        """Wait until there are `count` announcements; return all announcements."""
        return wait_for(
            lambda: len(self.announced()) >= count and self.announced(), f"{count} announcements"
        )

    def stop(self, with_signal=signal.SIGTERM):
        """Send a signal to the watcher; return its exit code."""
        self.process.send_signal(with_signal)
        return self.process.wait(30)
