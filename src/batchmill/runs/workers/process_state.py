"""The state of a worker process that a step may change: settings and streams. Both are restored.

Each setting is read in a fraction of a microsecond. `docs/explanation/isolation.md` lists them.
"""

import decimal
import locale
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial

# Imported by name: a step may replace functions of the module.
from os import close, dup, fstat, ftruncate, lseek
from typing import IO, Any, NamedTuple

import torch

from batchmill.runs.workers.worker_channel import anonymous_file

_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)
_DECIMAL = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")
_TIMERS = (signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
# The position of the worker's streams while no step has used them. A file that a step opens has
# another position. Comparing positions takes a quarter of the time of comparing files.
_MARK = 0x6D696C6C
_STREAMS = (0, 1, 2)
# A worker is replaced when its steps have left this many file descriptors open.
_MAX_LEFT_OPEN = 200
_ENCODING, _ERRORS = "utf-8", "backslashreplace"


class _Setting(NamedTuple):
    """A setting: how it is read, and how it is set. None if the worker does not set it."""

    read: Callable[[], Any]
    write: Callable[[Any], object] | None = None


class ProcessState:
    """The settings of this process when the object was created."""

    def __init__(self) -> None:
        self._settings = _settings()
        self._reads = [setting.read for setting in self._settings]
        self._values = self._read()
        self._next_descriptor = _next_descriptor()

    def restore(self, open_files: int = 0) -> bool:
        """Restore all settings. Return False if this is impossible, or too many files are open.

        Inputs in progress may have `open_files`.
        """
        # With too many files left open, no further input could be opened soon.
        if _next_descriptor() > self._next_descriptor + _MAX_LEFT_OPEN + open_files:
            return False
        now = self._read()
        if now == self._values:
            return True
        for setting, was, value in zip(self._settings, self._values, now, strict=True):
            if was != value and setting.write:
                try:
                    setting.write(was)
                except (OSError, ValueError, TypeError):
                    return False  # For example, only root may raise a limit again.
        return self._read() == self._values

    def _read(self) -> list[Any]:
        return [read() for read in self._reads]


def _next_descriptor() -> int:
    """Return the lowest unused file descriptor. It grows if steps leave files open."""
    descriptor = dup(0)
    close(descriptor)
    return descriptor


def _settings() -> list[_Setting]:
    return [
        # A process that ignores this signal takes failed child processes for successful ones.
        _Setting(partial(signal.getsignal, signal.SIGCHLD), partial(signal.signal, signal.SIGCHLD)),
        *(
            _Setting(partial(resource.getrlimit, n), partial(resource.setrlimit, n))
            for n in _LIMITS
        ),
        *(_Setting(partial(signal.getitimer, n), partial(_set_timer, n)) for n in _TIMERS),
        _restored_umask(),
        _Setting(sys.getrecursionlimit, sys.setrecursionlimit),
        # Without a way back: the worker is replaced.
        _Setting(os.getresuid),
        _Setting(partial(os.getpriority, os.PRIO_PROCESS, 0)),
        _Setting(socket.getdefaulttimeout, socket.setdefaulttimeout),
        _Setting(
            partial(locale.setlocale, locale.LC_ALL), partial(locale.setlocale, locale.LC_ALL)
        ),
        _Setting(_read_decimal, _set_decimal),
        _Setting(torch.get_default_dtype, torch.set_default_dtype),
        _Setting(torch.is_grad_enabled, torch.set_grad_enabled),
    ]


def _restored_umask() -> _Setting:
    """Return the umask as a setting. Reading it restores it.

    It can only be read by setting it. Another value, even for a moment, would reach the files of
    threads that a step has left.
    """
    mask = os.umask(0o077)
    os.umask(mask)
    return _Setting(partial(os.umask, mask), os.umask)


def _set_timer(which: int, value: tuple[float, float]) -> None:
    signal.setitimer(which, *value)


def _read_decimal() -> tuple[Any, ...]:
    context = decimal.getcontext()
    traps = context.traps.copy()
    return (*(getattr(context, name) for name in _DECIMAL), traps)


def _set_decimal(value: tuple[Any, ...]) -> None:
    context = decimal.getcontext()
    *settings, context.traps = value
    for name, setting in zip(_DECIMAL, settings, strict=True):
        setattr(context, name, setting)


class BrokenWorkerError(Exception):
    """The process cannot be restored after an input."""


class WorkerStreams:
    """Standard input is empty; standard output and error are appended to the worker's log."""

    def __init__(self, log: int) -> None:
        self._log = log
        self._input = sys.stdin
        self._stdin = anonymous_file("batchmill-stdin")
        os.lseek(self._stdin, _MARK, os.SEEK_SET)
        self._redirect()

    def restore(self) -> None:
        """Restore the standard streams. Raises BrokenWorkerError if a step closed their files."""
        if not self._are_open():
            if not (self.has_log() and _identity(self._stdin) == self._identities[0]):
                raise BrokenWorkerError
            self._redirect()

    def are_unused(self) -> bool:
        """Flush the streams. Return True if they are the worker's own and the log is empty."""
        out, err = self._streams
        if not self._are_own():
            return False
        try:
            out.flush()
            err.flush()
            return all(lseek(stream, 0, os.SEEK_CUR) == _MARK for stream in _STREAMS)
        except (ValueError, OSError):
            return False

    def clear_log(self) -> None:
        """Remove the text of the log. Raises BrokenWorkerError if a step closed its file."""
        if not self.has_log():
            raise BrokenWorkerError
        ftruncate(self._log, 0)
        lseek(self._log, _MARK, os.SEEK_SET)

    def has_log(self) -> bool:
        """Return whether the log is still open. A step may have closed or replaced it."""
        return _identity(self._log) == self._identities[1]

    def _redirect(self) -> None:
        """Redirect standard output and error to the log, and make standard input empty.

        A thread of the parent may have held the lock of the parent's streams during the fork. In
        the worker that lock is never released, and a step that prints or logs would hang.
        """
        os.dup2(self._stdin, 0)
        os.dup2(self._log, 1)
        os.dup2(self._log, 2)
        os.lseek(self._log, _MARK, os.SEEK_SET)
        self._streams = (_text_stream(1), _text_stream(2))
        sys.stdout, sys.stderr = self._streams
        sys.stdin = self._input
        self._identities = [*map(_identity, _STREAMS)]

    def _are_own(self) -> bool:
        """Return whether the objects of `sys` are the worker's own, with their usual settings."""
        out, err = self._streams
        return (
            sys.stdout is out
            and sys.stderr is err
            and sys.stdin is self._input
            and (out.errors, err.errors) == (_ERRORS, _ERRORS)
            and (out.encoding, err.encoding) == (_ENCODING, _ENCODING)
        )

    def _are_open(self) -> bool:
        try:
            return (
                self._are_own()
                and not any(stream.closed for stream in self._streams)
                and [*map(_identity, _STREAMS)] == self._identities
            )
        except ValueError:
            return False


def _identity(descriptor: int) -> tuple[int, int] | None:
    """Return the device and inode of an open file; None if the file is closed."""
    try:
        seen = fstat(descriptor)
    except OSError:
        return None
    return seen.st_dev, seen.st_ino


def _text_stream(descriptor: int) -> IO[str]:
    return os.fdopen(
        descriptor, "w", buffering=1, encoding=_ENCODING, errors=_ERRORS, closefd=False
    )
