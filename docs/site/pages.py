"""Lay out the repository's pages as a site's: the same text, with links that lead to its pages.

On GitHub a page links to files around it. In the site the folders of docs/ are at the top, and a
source file or folder that a page links to becomes a page that shows it.
"""

import os
import re
import shutil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# Pages that belong to the site, wherever they are.
SOURCES = (
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/*.md",
    "docs/*/*.md",
    "examples/*/README.md",
)
_FENCED = re.compile(r"(^```.*?^```[^\n]*$)", re.MULTILINE | re.DOTALL)
# What is meant for the tests that run a page: "python run".
_WORDS_OF_A_FENCE = re.compile(r"^(```\w+) .*$", re.MULTILINE)
_LINK = re.compile(r"\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<target>[^()\s]+)\)")
_PICTURES = (".png", ".jpg", ".svg")
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", ".csv": "text"}


class SiteError(Exception):
    """The site cannot be built; `faults` has a sentence for each thing that is wrong."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__(faults)
        self.faults = faults

    def __str__(self) -> str:
        return "\n".join(self.faults)


def source_pages() -> list[Path]:
    """Return the pages of the repository that belong to the site."""
    return [page for pattern in SOURCES for page in sorted(ROOT.glob(pattern))]


def place_of(source: Path) -> str:
    """Return where a page, a picture, or the page about another file or folder is in the site."""
    path = source.relative_to(ROOT)
    if path.suffix in (".md", *_PICTURES):
        return (path.relative_to("docs") if path.parts[0] == "docs" else path).as_posix()
    # Names that begin with a dot would be left out of the site.
    return "/".join(["source", *(part.removeprefix(".") for part in path.parts)]) + ".md"


def lay_out(folder: Path) -> list[str]:
    """Write all pages and what they show to `folder`; return the places of the pages.

    Raises SiteError for links that lead nowhere.
    """
    faults: list[str] = []
    linked: set[Path] = set()
    for page in source_pages():
        _write(folder / place_of(page), _relink(page, linked, faults))
    for source in sorted(linked):
        if source.suffix in _PICTURES:
            place = folder / place_of(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, place)
        elif source not in source_pages():
            _write(folder / place_of(source), _show(source))
    if faults:
        raise SiteError(faults)
    return [place_of(page) for page in source_pages()]


def check_navigation(navigation: Any, pages: list[str]) -> None:
    """Raise SiteError unless the navigation has each of the pages, once, and no other."""
    named = _named(navigation)
    where = "nav, in docs/site/mkdocs.yml,"
    faults = [
        f"{page}: is not in the navigation. Give it a line under {where} where readers look for it."
        for page in pages
        if page not in named
    ]
    faults += [
        f"{name}: {where} names it, but there is none." for name in sorted(set(named) - set(pages))
    ]
    faults += [
        f"{name}: {where} names it twice."
        for name in sorted({n for n in named if named.count(n) > 1})
    ]
    if faults:
        raise SiteError(faults)


def _named(navigation: Any) -> list[str]:
    if isinstance(navigation, str):
        return [navigation]
    parts = navigation.values() if isinstance(navigation, dict) else navigation
    return [name for part in parts for name in _named(part)]


def _relink(page: Path, linked: set[Path], faults: list[str]) -> str:
    """Return a page's text with links for the site; what it links to is added to `linked`."""

    def replace(match: re.Match[str]) -> str:
        text, target = match["text"], match["target"]
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        name, _, anchor = target.partition("#")
        source = Path(os.path.normpath(page.parent / name))
        if not source.exists() or not source.is_relative_to(ROOT):
            faults.append(f"{page.relative_to(ROOT)}: the link to {target} leads nowhere.")
            return match[0]
        linked.add(source)
        if text.endswith(".md") and source.suffix == ".md":
            # A file's name says something on GitHub; here, its title does.
            text = _title(source)
        place = os.path.relpath(place_of(source), os.path.dirname(place_of(page)) or ".")
        return f"[{text}]({place}{'#' if anchor else ''}{anchor})"

    # Every second piece is a block of code, where nothing is a link.
    text = _WORDS_OF_A_FENCE.sub(r"\1", page.read_text(encoding="utf-8"))
    pieces = _FENCED.split(text)
    pieces[::2] = [_LINK.sub(replace, piece) for piece in pieces[::2]]
    return "".join(pieces)


def _title(page: Path) -> str:
    first, _, _ = page.read_text(encoding="utf-8").partition("\n")
    return first.removeprefix("# ")


def _show(source: Path) -> str:
    """Return a page that shows a source file, or the files of a folder."""
    title = f"# {source.relative_to(ROOT).as_posix()}\n\n"
    if source.is_dir():
        files = [file for file in sorted(source.iterdir()) if file.is_file()]
        return title + "\n".join(f"## {file.name}\n\n{_as_code(file)}" for file in files)
    return title + _as_code(source)


def _as_code(source: Path) -> str:
    try:
        text = source.read_text(encoding="utf-8").rstrip()
    except UnicodeDecodeError:
        return f"{source.stat().st_size:,} bytes, not text.\n"
    return f"````{_LANGUAGES.get(source.suffix, 'text')}\n{text}\n````\n"


def _write(place: Path, text: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text, encoding="utf-8")
