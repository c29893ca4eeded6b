"""Print the missing Debian packages of `make test-system`, and the command that installs them.

    python tests/support/system_packages.py [--names]

With --names, print the names of all packages instead.
"""

import os
import shutil
import sys
from pathlib import Path

# Debian packages, each with a check whether it is installed.
PACKAGES = {
    "chromium": lambda: shutil.which("chromium"),
    "fonts-dejavu-core": lambda: Path("/usr/share/fonts/truetype/dejavu").exists(),
    "iproute2": lambda: shutil.which("ip"),
    "postgresql": lambda: any(Path("/usr/lib/postgresql").glob("*/bin/initdb")),
}


def main():
    """Return the exit code: 2 if the system tests cannot run here."""
    if "--names" in sys.argv:
        print(*PACKAGES)
        return 0
    missing = [name for name, is_there in PACKAGES.items() if not is_there()]
    if missing:
        print(f"Missing Debian packages: {', '.join(missing)}. Run: sudo make system-packages")
    if os.geteuid() != 0:
        print("The cluster tests need root. Run: sudo make test-system")
    has_space = " " in sys.prefix
    if has_space:
        print(
            f"Ray Client does not start from {sys.prefix}, because of the space. Move the folder."
        )
    return 2 if missing or os.geteuid() != 0 or has_space else 0


if __name__ == "__main__":
    sys.exit(main())
