"""Create an environment with pinned versions for each tool, in `build/peers`."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / "build" / "peers"


class InstallError(Exception):
    """A tool cannot be installed. The message is the last line of pip."""


def requirements_of(name: str) -> Path:
    """Return the file with the pinned requirements of a tool."""
    return Path(__file__).parent / "requirements" / f"{name}.txt"


def python_of(name: str) -> Path:
    """Return the interpreter of a tool's environment.

    Creates the environment if it is missing or its requirements changed. Raises InstallError.
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
