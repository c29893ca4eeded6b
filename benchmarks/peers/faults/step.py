"""The function that all tools run over the files, some of which are bad.

The command writes each tool's script into the folder of a trial, with this file instead of its
import. A user's script has its function in it, and some tools find a change only there.
"""

import hashlib
import os
import signal
import time
from pathlib import Path
from typing import Any

MEGABYTE = 2**20


def work(path: str | Path) -> dict[str, Any]:
    """Return a row about a text file.

    Each execution appends the file's name to a log, which only the benchmark reads. A file that
    begins with `crash`, `hang` or `memory` does that. One that is not UTF-8 raises.
    """
    name = os.path.basename(path)
    log = os.open(os.environ["FAULTS_LOG"], os.O_WRONLY | os.O_APPEND)
    os.write(log, f"{name}\n".encode())
    os.close(log)
    text = Path(path).read_text(encoding="utf-8")
    if text.startswith("crash"):
        os.abort()
    while text.startswith("hang"):
        time.sleep(1)
    if text.startswith("memory"):
        blocks = []
        for _ in range(30):
            blocks.append(b"x" * (50 * MEGABYTE))
            time.sleep(0.04)
        # The kernel kills a process that needs more memory than the machine has.
        os.kill(os.getpid(), signal.SIGKILL)
    digest = hashlib.pbkdf2_hmac("sha256", text.encode(), b"faults", 40_000)
    return {"name": name, "word": text[:4], "digest": digest.hex()}


def tried(path: str | Path) -> dict[str, Any]:
    """Return the row of a file, or one with its error: for tools that stop at an exception."""
    try:
        return {**work(path), "error": ""}
    except Exception as error:  # noqa: BLE001
        name = os.path.basename(path)
        return {"name": name, "word": "", "digest": "", "error": repr(error)}
