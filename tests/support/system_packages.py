"""Say what `make test-system` needs and this machine lacks, and how to install it.

    python tests/support/system_packages.py [--names]

With --names, it prints the packages' names only.
"""

import os
import shutil
import sys
from pathlib import Path

# Debian's packages, and what tells that one is there.
PACKAGES = {
    "chromium": lambda: shutil.which("chromium"),
    "fonts-dejavu-core": lambda: Path("/usr/share/fonts/truetype/dejavu").exists(),
    "iproute2": lambda: shutil.which("ip"),
    "postgresql": lambda: any(Path("/usr/lib/postgresql").glob("*/bin/initdb")),
}


def main():
    """Exit with 2 if something is missing."""
    if "--names" in sys.argv:
        print(*PACKAGES)
        return 0
    missing = [name for name, is_there in PACKAGES.items() if not is_there()]
    if missing:
        print(f"Not installed: {', '.join(missing)}.\nInstall them: sudo make system-packages")
    if os.geteuid() != 0:
        print("The tests of clusters make networks: run this as root, with sudo make test-system.")
    return 2 if missing or os.geteuid() != 0 else 0


if __name__ == "__main__":
    sys.exit(main())
