"""`batchmill init`: write a project that runs at once."""

import shutil
from pathlib import Path

from batchmill.cli.console import console
from batchmill.errors import OptionError

_PROJECT = Path(__file__).parent / "project"


def init(folder: Path, /) -> None:
    """Write a project to start from: a step, its test, three inputs and a deployment.

    The folder is created if it is missing. No file is replaced: if one of the names is taken, the
    command writes nothing.

    ```
    batchmill init words
    cd words
    batchmill run texts --step wordcount:count --output counts
    ```

    Args:
        folder: The folder of the project.
    """
    folder = folder.expanduser()
    for name in sorted(path.name for path in _PROJECT.iterdir()):
        if (folder / name).exists():
            raise OptionError(f"{folder / name}: exists. Choose another folder, or move it away.")
    try:
        hidden = shutil.ignore_patterns("__pycache__")
        shutil.copytree(_PROJECT, folder, ignore=hidden, dirs_exist_ok=True)
    except OSError as error:
        raise OptionError(f"{folder}: cannot be written: {error}. Choose another folder.") from None
    console().print(
        f"{folder} has a step, its test, three inputs and a deployment. Next:\n"
        f"  cd {folder}\n"
        "  batchmill run texts --step wordcount:count --output counts"
    )
