"""An environment for each peer, under `build/peers`, with the versions that it is measured in."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / "build" / "peers"


class InstallError(Exception):
    """A peer cannot be installed; its text is pip's last word."""


def requirements_of(name: str) -> Path:
    """Return the file with the exact versions of what a peer needs."""
    return Path(__file__).parent / "requirements" / f"{name}.txt"


def python_of(name: str) -> Path:
    """Return the interpreter of a peer's environment, and make that if it is not there.

    It is made anew when its requirements have changed. Raises InstallError.
    """
    folder = ENVIRONMENTS / name
    python = folder / "bin" / "python"
    wanted = hashlib.sha256(requirements_of(name).read_bytes()).hexdigest()
    made = folder / "made-of"
    if made.is_file() and made.read_text() == wanted:
        return python
    print(f"installing {name} into {folder.relative_to(ROOT)} ...", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(folder)])
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([str(python), *install, "-r", str(requirements_of(name))])
    made.write_text(wanted)
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise InstallError(f"it cannot be installed: {lines[-1] if lines else command}")
