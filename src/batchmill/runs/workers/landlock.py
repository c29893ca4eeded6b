"""Landlock, by which a process loses the right to change files and to open connections.

Method: the kernel's documentation, https://docs.kernel.org/userspace-api/landlock.html. The C
library has no functions for these system calls.
"""

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

from batchmill.errors import OptionError

# The numbers of the system calls are the same on all architectures except Alpha.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH, _PR_SET_NO_NEW_PRIVS = 1, 1, 38

# With version 4 (Linux 6.7), all changes of files and all TCP connections can be denied.
_LEAST_VERSION = 4
_SCOPES_VERSION = 6

_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
# Write, remove, make (files, folders, links, devices, sockets, pipes), move and truncate.
_CHANGES = _WRITE_FILE | sum(1 << bit for bit in range(4, 14)) | _TRUNCATE
_TCP = 0b11
# Connections to abstract sockets and signals to processes outside.
_SCOPES = 0b11

_libc = ctypes.CDLL(None, use_errno=True)

# The structs `landlock_ruleset_attr` (denied access to files, denied network, scopes) and
# `landlock_path_beneath_attr` (allowed access, file descriptor). The second is packed.
_RULESET, _PATH_RULE = struct.Struct("=QQQ"), struct.Struct("=Qi")


def is_supported() -> bool:
    """Return whether this kernel can deny changes of files and TCP connections."""
    return _version() >= _LEAST_VERSION


def check_support(writable: Iterable[str]) -> None:
    """Check that this machine can confine a step that may also change the `writable` paths.

    Raises:
        OptionError: The kernel is too old, or a path does not exist.
    """
    if not is_supported():
        raise OptionError(
            "--confine: this machine cannot confine a step. It needs Linux 6.7 or newer with "
            "Landlock. Use another machine, or drop the option."
        )
    for path in writable:
        if not os.path.exists(path):
            raise OptionError(f"--allow-write {path}: no such file or folder. Create it.")


def restrict(writable: Iterable[str], *, network: bool) -> None:
    """Restrict this process, and all processes that it starts, until they end.

    Afterwards, it can change files only below the `writable` folders. It cannot send signals to
    processes outside. Reading, UDP and open files stay as they are.

    Args:
        writable: Existing folders and files.
        network: True to allow TCP connections.

    Raises:
        OSError: A path does not exist, or the kernel does not support this.
    """
    version = _version()
    rules = _RULESET.pack(_CHANGES, 0 if network else _TCP, _SCOPES)
    size = len(rules) - (0 if version >= _SCOPES_VERSION else 8)
    ruleset = _call(_CREATE_RULESET, rules, ctypes.c_size_t(size), 0)
    try:
        for path in writable:
            _allow(ruleset, path)
        if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl failed")
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        allowed = _CHANGES if is_folder else _WRITE_FILE | _TRUNCATE
        rule = _PATH_RULE.pack(allowed, descriptor)
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)


def _version() -> int:
    """Return the version of Landlock in this kernel; 0 without Landlock."""
    try:
        return _call(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG)
    except OSError:
        return 0


def _call(number: int, *arguments: object) -> int:
    result: int = _libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"Landlock: {os.strerror(code)}")
    return result
