"""Wait for file-system events in a folder of this machine."""

import os
import threading

import watchfiles

# Values of `_watched_folder` that are not the identity of a folder.
_UNKNOWN, _MISSING = (-1, -1), (-2, -2)
_THREAD_END_SECONDS = 5.0
_POLL_MILLISECONDS = 500


class FolderWatcher:
    """Waits for file-system events below a folder.

    The folder may disappear and be created again. Then the new folder is watched.

    Attributes:
        failure: Why there are no file-system events. Empty if there is no problem.
    """

    def __init__(self, folder: str) -> None:
        """Watch nothing until `wait` is called.

        Args:
            folder: The absolute path of the folder.
        """
        self._folder = folder
        self._changed = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        # The device and inode of the folder that is watched, _MISSING, or _UNKNOWN.
        self._watched_folder = _UNKNOWN
        self.failure = ""

    def wait(self, seconds: float) -> bool:
        """Wait for a change.

        Args:
            seconds: The longest time to wait.

        Returns:
            True as soon as something changed, False after `seconds` without a change.
        """
        self._watch_current_folder()
        changed = self._changed.wait(seconds)
        self._changed.clear()
        return changed

    def wake(self) -> None:
        """Make `wait` return now."""
        self._changed.set()

    def close(self) -> None:
        """Stop watching. The next call of `wait` starts again."""
        self._watched_folder = _UNKNOWN
        if self._thread:
            self._stop.set()
            # The thread checks for the stop twice a second. A thread that hangs is abandoned.
            self._thread.join(_THREAD_END_SECONDS)
            self._thread = None

    def _watch_current_folder(self) -> None:
        """Watch the folder that has this path now. Another disk may have been mounted there."""
        folder = _identity(self._folder)
        if folder == self._watched_folder:
            return
        self.close()
        self._watched_folder = folder
        # The folder was created, removed or replaced.
        self._changed.set()
        if folder != _MISSING:
            self._stop = threading.Event()
            self._thread = threading.Thread(
                target=self._receive_events, args=[self._stop], daemon=True
            )
            self._thread.start()

    def _receive_events(self, stop: threading.Event) -> None:
        events = watchfiles.watch(
            self._folder,
            watch_filter=None,
            stop_event=stop,
            rust_timeout=_POLL_MILLISECONDS,
            yield_on_timeout=True,
            ignore_permission_denied=True,
            raise_interrupt=False,
        )
        is_receiving = False
        try:
            for changes in events:
                # The first yield means that watching has started. Files may have changed before, so
                # the folder has to be listed again.
                if changes or not is_receiving:
                    self._changed.set()
                is_receiving = True
        except (OSError, RuntimeError, ValueError) as error:
            if is_receiving or isinstance(error, FileNotFoundError):
                # A file name is not UTF-8, or the folder just disappeared. Watch again.
                self._watched_folder = _UNKNOWN
            else:
                # The usual cause is the kernel's limit on the folders that one user watches.
                self.failure = str(error)
            self._changed.set()


def _identity(folder: str) -> tuple[int, int]:
    try:
        found = os.stat(folder)
    except OSError:
        return _MISSING
    return found.st_dev, found.st_ino
