"""Report that a step has ended the process of the command, for example with `os._exit`."""

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reporting_process_end(message: str) -> Iterator[None]:
    """Print a message to standard error if this process ends during the block.

    A process that ends in this way cannot print it, so a second process does.
    """
    try:
        this_process = os.pidfd_open(os.getpid())
    except OSError:  # A system without this call. The message is left out.
        yield
        return
    watcher = os.fork()
    if watcher == 0:
        try:
            _print_at_end(this_process, message)
        finally:
            os._exit(0)
    os.close(this_process)
    try:
        yield
    finally:
        os.kill(watcher, signal.SIGKILL)
        os.waitpid(watcher, 0)


def _print_at_end(process: int, message: str) -> None:
    """Wait for the end of a process, and print the message."""
    # Ctrl-C also reaches this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wait = select.poll()
    wait.register(process, select.POLLIN)
    wait.poll()
    os.write(2, f"{message}\n".encode())
