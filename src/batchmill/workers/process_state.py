"""The settings of a worker process that a step may change, and that the worker restores.

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
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

_LIMITS = (
    resource.RLIMIT_AS,
    resource.RLIMIT_CPU,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_NOFILE,
)
_DECIMAL = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")
_TIMERS = (signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


@dataclass(frozen=True)
class _Setting:
    """A setting: how it is read, and how it is set. None if the worker does not set it."""

    read: Callable[[], Any]
    write: Callable[[Any], object] | None = None


class ProcessState:
    """The settings of this process when the object was created."""

    def __init__(self) -> None:
        self._settings = _settings()
        self._reads = [setting.read for setting in self._settings]
        self._values = self._read()

    def restore(self) -> bool:
        """Restore all settings. Return False if one of them cannot be restored."""
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


def _settings() -> list[_Setting]:
    return [
        # A process that ignores this signal takes failed child processes for successful ones.
        _Setting(partial(signal.getsignal, signal.SIGCHLD), partial(signal.signal, signal.SIGCHLD)),
        *(
            _Setting(partial(resource.getrlimit, n), partial(resource.setrlimit, n))
            for n in _LIMITS
        ),
        *(_Setting(partial(signal.getitimer, n), partial(_set_timer, n)) for n in _TIMERS),
        _Setting(_read_umask, os.umask),
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


def _limit(number: int) -> _Setting:
    return _Setting(partial(resource.getrlimit, number), partial(resource.setrlimit, number))


def _set_locale(name: str | None = None) -> str:
    return locale.setlocale(locale.LC_ALL, name)


def _read_umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


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
