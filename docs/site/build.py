"""Build the documentation site: `python docs/site/build.py [FOLDER]`, by default build/site.

Lays out the pages, generates the reference, and runs zensical. The site also has the pages as
Markdown, which llms.txt lists. If a link is broken or a page is
missing in the navigation, prints a sentence for each fault and exits with 2.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from llms import llms_txt
from pages import ROOT, SiteError, check_navigation, lay_out

HERE = Path(__file__).parent
ASSETS = ("site.css", "iframe-worker.js")
REFERENCE = tuple(
    f"reference/{name}.md" for name in ("commands", "flows", "blocks", "python", "tests")
)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def build(target: Path) -> None:
    """Build the site and replace the folder `target` with it.

    Raises:
        SiteError: A link is broken, or the navigation does not match the pages.
    """
    settings = (HERE / "mkdocs.yml").read_text(encoding="utf-8")
    # A temporary folder, so that concurrent builds do not interfere.
    with tempfile.TemporaryDirectory(prefix="batchmill-site-") as folder:
        work = Path(folder)
        pages = work / "docs"
        places = [*lay_out(pages), *REFERENCE]
        navigation = yaml.safe_load(settings)["nav"]
        check_navigation(navigation, places)
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
            # zensical prints the faults in colour, and then its own traceback.
            said = _COLOURS.sub("", done.stderr)
            raise SiteError([said.partition("Traceback (most")[0].strip() or said])
        for place in places:
            shutil.copyfile(pages / place, work / "site" / place)
        (work / "site" / "llms.txt").write_text(llms_txt(navigation, pages), encoding="utf-8")
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(work / "site", target)


def _write_reference(pages: Path) -> None:
    # Importing Prefect takes seconds. Faults in the pages are reported before that.
    from python_api import python_api
    from reference import blocks, commands, flows
    from tests_page import tests_page

    (pages / "reference").mkdir(exist_ok=True)
    for place, make in zip(
        REFERENCE, (commands, flows, blocks, python_api, tests_page), strict=True
    ):
        (pages / place).write_text(make(), encoding="utf-8")


def main() -> None:
    """Build the site to the folder from the command line."""
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
