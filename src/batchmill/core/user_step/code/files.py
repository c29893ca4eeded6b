"""Find the source files and packages of modules, and the user's modules. Imports nothing."""

import os
import sys
import sysconfig
from collections.abc import Set
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ModuleSpec
from importlib.metadata import packages_distributions, version
from pathlib import Path

# Folders of installed packages. Modules elsewhere are the user's own.
_INSTALLED = tuple(
    os.path.realpath(sysconfig.get_path(name)) + os.sep
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_INSTALLED_FOLDERS = {"site-packages", "dist-packages"}
_OURS = __name__.partition(".")[0]
_OUR_STEPS = f"{_OURS}.steps."


def source_file(name: str) -> str | None:
    """Return the source file or compiled file of a module. Import nothing. None without a file."""
    if name.partition(".")[0] in sys.stdlib_module_names:
        return None
    path = getattr(sys.modules.get(name), "__file__", None)
    if path is None:
        spec = _spec(name)
        path = spec.origin if spec else None
    suffixes = (*SOURCE_SUFFIXES, *EXTENSION_SUFFIXES)
    return path if path and path.endswith(suffixes) and os.path.isfile(path) else None


def is_users(name: str, path: str, tops: set[str]) -> bool:
    """Return whether a module belongs to the user's code.

    Args:
        name: The module.
        path: Its file.
        tops: The packages of the step, which count although they may be installed.

    Returns:
        True for the step's packages, and for modules outside of the folders of installed packages.
        Modules of batchmill count only below batchmill.steps: the engine does not change results.
    """
    top = name.partition(".")[0]
    if top == _OURS:
        return top in tops and name.startswith(_OUR_STEPS)
    if top in tops:
        return True
    place = os.path.realpath(path)
    if place.startswith(_INSTALLED) or _INSTALLED_FOLDERS & {*place.split(os.sep)}:
        return False
    # The user's own modules may be in a folder of `pip install --target`, too.
    above = name.count(".") + os.path.basename(path).startswith("__init__.")
    folders = Path(path).parents
    return top not in _installed_in(folders[min(above, len(folders) - 1)])


@cache
def _installed_in(folder: Path) -> Set[str]:
    """Return the installed packages if pip has installed any into a folder."""
    return packages_distributions().keys() if any(folder.glob("*.dist-info")) else set()


def imported_packages() -> dict[str, str]:
    """Return the versions of the packages that this process has imported, by name."""
    known = packages_distributions()
    tops = {name.partition(".")[0] for name in sys.modules}
    packages = sorted({package for top in tops for package in known.get(top, ())})
    return {package: version(package) for package in packages}


def _spec(name: str) -> ModuleSpec | None:
    """Find a module as the import system does, but without importing its parents.

    The parents may be slow to import, or may need something that this machine does not have.
    """
    if name in sys.modules:
        return getattr(sys.modules[name], "__spec__", None)
    parent, _, last = name.rpartition(".")
    folders = _folders(parent) if parent else None
    if parent and not folders:
        return None  # The name is an attribute of a module, or the module is not installed.
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
    try:
        specs = (finder.find_spec(name, folders) for finder in finders)
        return next((spec for spec in specs if spec), None)
    except KeyError:
        # The import system looks up the parent of a package without __init__.py in sys.modules.
        spec = ModuleSpec(name, None, is_package=True)
        inner = (os.path.join(folder, last) for folder in folders or ())
        spec.submodule_search_locations = [folder for folder in inner if os.path.isdir(folder)]
        return spec
    except (ImportError, ValueError, AttributeError):
        return None


def _folders(name: str) -> list[str] | None:
    """Return the folders of a package. None for another module."""
    if name in sys.modules:
        folders = getattr(sys.modules[name], "__path__", None)
    else:
        spec = _spec(name)
        folders = spec.submodule_search_locations if spec else None
    return None if folders is None else list(folders)
