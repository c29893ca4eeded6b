"""Build the wheel from a copy of the sources, and an environment without these sources."""

import shutil
import subprocess
import sys
from pathlib import Path

from harness.live import ROOT

SOURCES = ("src", "flows", "tasks", "blocks", "pyproject.toml", "README.md", "LICENSE")


def build_wheel(folder):
    """Build the wheel in a folder; return its path."""
    # Concurrent builds in the repository would write to the same folder `build`.
    copy = folder / "sources"
    copy.mkdir(parents=True)
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("*.egg-info"))
        else:
            shutil.copy(source, copy / name)
    pip("wheel", "--no-deps", "--wheel-dir", folder, copy)
    (wheel,) = folder.glob("*.whl")
    return wheel


def environment_with(wheel, folder):
    """Create a virtual environment with the wheel; dependencies come from this environment.

    Returns the folder of its commands, which has also `prefect`.
    """
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", folder], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    commands = folder / "bin"
    pip("--python", commands / "python", "install", "--no-deps", "--no-index", wheel)
    (site,) = folder.glob("lib/python*/site-packages")
    # Python ignores .pth files in these folders, so the editable install of the sources is hidden.
    others = [path for path in sys.path if Path(path).name == "site-packages"]
    (site / "others.pth").write_text("".join(f"{path}\n" for path in others))
    prefect = commands / "prefect"
    prefect.write_text(f'#!/bin/sh\nexec "{commands}/python" -m prefect "$@"\n')
    prefect.chmod(0o755)
    return commands


def pip(*arguments):
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
