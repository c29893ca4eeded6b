"""The installed packages that this process has imported, such as those of a step."""

import sys
from importlib.metadata import packages_distributions, version


def imported_packages() -> dict[str, str]:
    """Return the versions of the packages that this process has imported, by name."""
    known = packages_distributions()
    tops = {name.partition(".")[0] for name in sys.modules}
    found = sorted({package for top in tops for package in known.get(top, ())})
    return {package: version(package) for package in found}
