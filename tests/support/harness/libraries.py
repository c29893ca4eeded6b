"""Install small libraries into a folder, as pip does."""

import importlib
import zipfile


class Site:
    """A folder with installed libraries that tests plant and upgrade."""

    def __init__(self, folder):
        self.folder = folder / "site-packages"
        self.folder.mkdir(parents=True, exist_ok=True)

    def install(self, name, version, files, requires=()):
        """Install a wheel, or another version of it. `files` has texts by path."""
        distribution = name.replace("-", "_")
        for old in self.folder.glob(f"{distribution}-*.dist-info"):
            for file in old.iterdir():
                file.unlink()
            old.rmdir()
        info = f"{distribution}-{version}.dist-info"
        needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
        meta = {
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
            f"{info}/RECORD": "".join(f"{path},,\n" for path in [*files, f"{info}/METADATA"]),
        }
        wheel = self.folder.parent / f"{distribution}.whl"
        with zipfile.ZipFile(wheel, "w") as made:
            for path, text in {**files, **meta}.items():
                made.writestr(path, text)
        with zipfile.ZipFile(wheel) as made:
            made.extractall(self.folder)
        importlib.invalidate_caches()
