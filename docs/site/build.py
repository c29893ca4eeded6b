"""Build the documentation site: `python docs/site/build.py [FOLDER]`, by default build/site.

Lays out the pages, adds the reference, and has zensical make a site of them. Exits with 2, and a
sentence for each fault, where a link leads nowhere or a page is missing from the navigation.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from pages import ROOT, SiteError, check_navigation, lay_out

HERE = Path(__file__).parent
ASSETS = ("site.css", "iframe-worker.js")
REFERENCE = tuple(f"reference/{name}.md" for name in ("commands", "flows", "blocks", "python"))
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def build(target: Path) -> None:
    """Build the site to `target`, in place of what is there. Raises SiteError."""
    settings = (HERE / "mkdocs.yml").read_text(encoding="utf-8")
    # A folder of its own: two builds at once do not meet.
    with tempfile.TemporaryDirectory(prefix="batchmill-site-") as folder:
        work = Path(folder)
        pages = work / "docs"
        places = lay_out(pages)
        check_navigation(yaml.safe_load(settings)["nav"], [*places, *REFERENCE])
        _write_reference(pages)
        for name in ASSETS:
            shutil.copyfile(HERE / name, pages / name)
        (work / "mkdocs.yml").write_text(settings, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "zensical", "build", "--strict"],
            cwd=work,
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            # What it has to say of the pages is in colours; a traceback of its own follows.
            said = _COLOURS.sub("", done.stderr)
            raise SiteError([said.partition("Traceback (most")[0].strip() or said])
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(work / "site", target)


def _write_reference(pages: Path) -> None:
    # They load Prefect, which takes seconds: the pages' own faults are told without it.
    from python_api import python_api
    from reference import blocks, commands, flows

    (pages / "reference").mkdir(exist_ok=True)
    for place, make in zip(REFERENCE, (commands, flows, blocks, python_api), strict=True):
        (pages / place).write_text(make(), encoding="utf-8")


def main() -> None:
    """Build the site that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build" / "site")
    folder = parser.parse_args().folder
    try:
        build(folder)
    except SiteError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    print(f"Open {folder / 'index.html'}")


if __name__ == "__main__":
    main()
