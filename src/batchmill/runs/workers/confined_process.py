"""Runs the step in a child process of a worker, which Landlock confines to a few folders.

The worker itself stays free: it fetches the input, and moves the step's files into the dataset. The
child process only calls the step. It lives as long as its worker, so the step can keep a cache. It
sends bytes, which the worker must not unpickle. If it dies, the worker dies in the same way, and
the watchdog and the executor handle this as for any step.
"""

import faulthandler
import os
import select
import signal
import stat
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import NoReturn

from batchmill.runs.workers.landlock import restrict
from batchmill.runs.workers.processes import adopt_orphans, end_children, end_with_parent, kill_tree
from batchmill.runs.workers.worker import DUMP_SIGNAL, begin_confined, restore_confined

# Programs open these devices to discard text, and to read zeros and random numbers.
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_BEGUN = b"."
# The last byte of an answer: whether the child process ends after it.
_STAYS, _ENDS = b"0", b"1"
# The handlers of these signals cannot be set.
_FIXED = (signal.SIGKILL, signal.SIGSTOP)


@dataclass(kw_only=True)
class ConfinedProcess:
    """The child process of a worker that runs the step.

    Attributes:
        run: Runs the step on the input with this index, in the child process. Never raises.
        folder: The folder for the step's files of all inputs.
        temporary: The folder for temporary files.
        writable: Other files and folders that the step may change.
        network: True if the step may open TCP connections.
    """

    run: Callable[[int], bytes]
    folder: Path
    temporary: Path
    writable: Sequence[str]
    network: bool
    _pid: int = 0
    _connection: Connection = field(init=False)
    # A file descriptor that is readable when the child process has ended.
    _alive: int = field(init=False)

    def __call__(self, index: int) -> bytes:
        """Run the step on an input, and return the answer of the child process.

        If the child process dies, this worker dies with the same signal or exit code.
        """
        is_new = not self._pid
        while not self._begins(index):
            if is_new:
                self._die_like_child()  # A further one would die in the same way.
            self._forget()  # It died between two inputs, so this input is not at fault.
            is_new = True
        try:
            answer = self._receive()
        except (OSError, EOFError):
            self._die_like_child()
        if answer.endswith(_ENDS):
            self._forget()
        return answer[:-1]

    def _begins(self, index: int) -> bool:
        """Send the request for an input. Return False if the child process did not begin it."""
        if not self._pid:
            self._start()
        try:
            self._connection.send(index)
            return self._receive() == _BEGUN
        except (OSError, EOFError):
            return False

    def _receive(self) -> bytes:
        """Receive a message. Raises EOFError if the child process dies before.

        Processes that the child process has started may still hold the other side.
        """
        ready, _, _ = select.select([self._connection.fileno(), self._alive], [], [])
        if self._connection.fileno() not in ready:
            raise EOFError
        return self._connection.recv_bytes()

    def _forget(self) -> None:
        kill_tree(self._pid)
        os.waitpid(self._pid, 0)
        os.close(self._alive)
        self._connection.close()
        self._pid = 0

    def _start(self) -> None:
        ours, theirs = Pipe()
        worker = os.getpid()
        self._pid = os.fork()
        if not self._pid:
            try:
                end_with_parent(worker)
                ours.close()
                _close_connections(keep=theirs.fileno())
                self._serve(theirs)
            except EOFError:
                pass  # The worker has ended.
            except Exception:  # noqa: BLE001  # Printed to the log of the worker.
                traceback.print_exc()
            finally:
                os._exit(1)
        theirs.close()
        self._connection = ours
        self._alive = os.pidfd_open(self._pid)
        # The stack of the child process is of interest, and not that of the worker.
        faulthandler.unregister(DUMP_SIGNAL)
        signal.signal(DUMP_SIGNAL, self._pass_on)

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        if self._pid:
            os.kill(self._pid, number)

    def _serve(self, connection: Connection) -> None:
        """Run the step for each request. This is the child process."""
        adopt_orphans()
        self.temporary.mkdir(exist_ok=True)
        os.environ["TMPDIR"] = tempfile.tempdir = str(self.temporary)
        begin_confined()
        writable = [str(self.folder), str(self.temporary), *_DEVICES, *self.writable]
        restrict(writable, network=self.network)
        while True:
            index = connection.recv()
            connection.send_bytes(_BEGUN)
            answer = self.run(index)
            signal.setitimer(signal.ITIMER_REAL, 0)
            end_children()
            ends = not restore_confined()
            connection.send_bytes(answer + (_ENDS if ends else _STAYS))
            if ends:
                os._exit(0)

    def _die_like_child(self) -> NoReturn:
        status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        if status < 0:
            faulthandler.disable()  # The child process has written its stack.
            if -status not in _FIXED:
                signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        os._exit(max(status, 0))


def _close_connections(keep: int) -> None:
    """Close the pipes and sockets that lead to the worker and to other processes."""
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        try:
            mode = os.fstat(descriptor).st_mode
        except OSError:
            continue  # The descriptor of the list itself.
        if descriptor > 2 and descriptor != keep and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
            os.close(descriptor)
