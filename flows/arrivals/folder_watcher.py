"""Rings when something changes in a folder of this machine."""

import os
import threading

import watchfiles

_NONE, _GONE = (-1, -1), (-2, -2)
_LAST_EVENTS_SECONDS = 5.0


class FolderWatcher:
    """Waits for file-system events below a folder, or for as long as it is told.

    The folder may go and come back: what is there then is listened to. Where there are no events,
    `silent` says why.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._rung = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        # Which folder is listened to: its device and inode, _GONE, or _NONE.
        self._heard = _NONE
        self.silent = ""

    def wait(self, seconds: float) -> bool:
        """Return True as soon as something has changed; False after so many seconds."""
        self._listen()
        rung = self._rung.wait(seconds)
        self._rung.clear()
        return rung

    def ring(self) -> None:
        """Let who waits go on."""
        self._rung.set()

    def close(self) -> None:
        """Listen no more, until somebody waits again."""
        self._heard = _NONE
        if self._thread:
            self._stop.set()
            # It looks every half a second; if it hangs, nobody need wait for it.
            self._thread.join(_LAST_EVENTS_SECONDS)
            self._thread = None

    def _listen(self) -> None:
        """Listen to the folder that has this name now: another disk may be mounted there."""
        folder = _identity(self._folder)
        if folder == self._heard:
            return
        self.close()
        self._heard = folder
        # It has come, gone or been exchanged.
        self._rung.set()
        if folder != _GONE:
            self._stop = threading.Event()
            self._thread = threading.Thread(target=self._hear, args=[self._stop], daemon=True)
            self._thread.start()

    def _hear(self, stop: threading.Event) -> None:
        events = watchfiles.watch(
            self._folder,
            watch_filter=None,
            stop_event=stop,
            rust_timeout=500,
            yield_on_timeout=True,
            ignore_permission_denied=True,
            raise_interrupt=False,
        )
        hears = False
        try:
            for changes in events:
                # The first says that it hears from now on: what was seen before may be old.
                if changes or not hears:
                    self._rung.set()
                hears = True
        except (OSError, RuntimeError, ValueError) as error:
            if hears or isinstance(error, FileNotFoundError):
                # By a name that is not UTF-8, or a folder that has just gone: it is begun anew.
                self._heard = _NONE
            else:
                # Most of all: more folders than the kernel watches for one user.
                self.silent = str(error)
            self._rung.set()


def _identity(folder: str) -> tuple[int, int]:
    try:
        found = os.stat(folder)
    except OSError:
        return _GONE
    return found.st_dev, found.st_ino
