"""The wheel, built from a copy of the sources, and an environment that has nothing else of ours."""

import shutil
import subprocess
import sys
from pathlib import Path

from live import ROOT

SOURCES = ("src", "flows", "tasks", "blocks", "pyproject.toml", "README.md")


def build_wheel(folder):
    """Build the wheel in a folder, and return its path."""
    # Two builds at once in the repository would write into the same `build`.
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
    """Make a virtual environment that has the wheel and, from this one, all that it needs.

    Returns the folder of its commands, `prefect` among them.
    """
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", folder], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    commands = folder / "bin"
    pip("--python", commands / "python", "install", "--no-deps", "--no-index", wheel)
    (site,) = folder.glob("lib/python*/site-packages")
    # As plain folders: what they install by way of .pth files, our sources, is not taken along.
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
