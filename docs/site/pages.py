"""Lay out the repository's pages and notebooks for the site: the same text, with links for it.

On GitHub a page links to files of the repository. In the site the folders of docs/ are at the top.
A source file or folder that a page links to becomes a page with its content.
"""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# Glob patterns of the pages in the site.
SOURCES = (
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/*.md",
    "docs/*/*.md",
    "examples/*/README.md",
    "examples/notebooks/*.ipynb",
)
_FENCED = re.compile(r"(^```.*?^```[^\n]*$)", re.MULTILINE | re.DOTALL)
# Words after the language are for the tests that run a page, for example "python run".
_WORDS_OF_A_FENCE = re.compile(r"^(```\w+) .*$", re.MULTILINE)
_LINK = re.compile(r"\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<target>[^()\s]+)\)")
_PICTURES = (".png", ".jpg", ".svg")
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", ".csv": "text"}


class SiteError(Exception):
    """The site cannot be built; `faults` has a sentence for each fault."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__(faults)
        self.faults = faults

    def __str__(self) -> str:
        return "\n".join(self.faults)


def source_pages() -> list[Path]:
    """Return the paths of the pages in the site."""
    return [page for pattern in SOURCES for page in sorted(ROOT.glob(pattern))]


def place_of(source: Path) -> str:
    """Return the path in the site of a page or picture, or of the page that shows another file."""
    path = source.relative_to(ROOT)
    if path.suffix == ".ipynb":
        return path.with_suffix(".md").as_posix()
    if path.suffix in (".md", *_PICTURES):
        return (path.relative_to("docs") if path.parts[0] == "docs" else path).as_posix()
    # zensical skips names that begin with a dot.
    return "/".join(["source", *(part.removeprefix(".") for part in path.parts)]) + ".md"


def lay_out(folder: Path) -> list[str]:
    """Write all pages and linked files to `folder`; return the paths of the pages in the site.

    Raises:
        SiteError: A link is broken.
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
    """Raise SiteError unless the navigation has each page exactly once, and no other page."""
    named = _named(navigation)
    where = "nav in docs/site/mkdocs.yml"
    faults = [
        f"{page}: the page is not in the navigation. Add it under {where}."
        for page in pages
        if page not in named
    ]
    faults += [
        f"{name}: {where} names this page, but the page does not exist."
        for name in sorted(set(named) - set(pages))
    ]
    faults += [
        f"{name}: {where} names this page twice."
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
    """Return a page's text with links for the site, and add the linked files to `linked`."""

    def replace(match: re.Match[str]) -> str:
        text, target = match["text"], match["target"]
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        name, _, anchor = target.partition("#")
        source = Path(os.path.normpath(page.parent / name))
        if not source.exists() or not source.is_relative_to(ROOT):
            faults.append(
                f"{page.relative_to(ROOT)}: the target of the link to {target} does not exist."
            )
            return match[0]
        linked.add(source)
        if text.endswith(".md") and source.suffix == ".md":
            # GitHub's readers see file names. The site's readers see titles.
            text = _title(source)
        place = os.path.relpath(place_of(source), os.path.dirname(place_of(page)) or ".")
        return f"[{text}]({place}{'#' if anchor else ''}{anchor})"

    # Every second piece is a block of code, which contains no links.
    text = page.read_text(encoding="utf-8")
    text = _notebook(text) if page.suffix == ".ipynb" else text
    text = _WORDS_OF_A_FENCE.sub(r"\1", text)
    pieces = _FENCED.split(text)
    pieces[::2] = [_LINK.sub(replace, piece) for piece in pieces[::2]]
    return "".join(pieces)


def _notebook(text: str) -> str:
    """Return a notebook as a page: its texts, its code, and the outputs that it was saved with."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            language = "bash" if source.startswith("%%bash") else "python"
            source = f"```{language}\n{source}\n```"
        parts += [source, *map(_output, cell.get("outputs", []))]
    return "\n\n".join(parts) + "\n"


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "text/html" in data:
        # Markdown ends a piece of HTML at an empty line.
        lines = "".join(data["text/html"]).splitlines()
        return "\n".join(line.strip() for line in lines if line.strip())
    if "image/png" in data:
        return f'<img alt="" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
    text = "".join(data.get("text/plain", output.get("text", "")))
    return f"```text\n{text.rstrip()}\n```"


def _title(page: Path) -> str:
    first, _, _ = page.read_text(encoding="utf-8").partition("\n")
    return first.removeprefix("# ")


def _show(source: Path) -> str:
    """Return a page with the content of a source file, or of the files in a folder."""
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
