"""Make llms.txt, the list of all pages for language models: https://llmstxt.org."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_FRONT_MATTER = re.compile(r"\A---\n.*?^---\n", re.MULTILINE | re.DOTALL)
_SENTENCE = re.compile(r".*?\.(?=\s|$)|.+")


def llms_txt(navigation: list[Any], folder: Path) -> str:
    """Return the list: a section for each part of the navigation, and a line for each page.

    A line has the first sentence of the page. The single decisions are left out, because a page
    lists them. `folder` contains the pages as Markdown.
    """
    lines = ["# batchmill", f"> {_summary(folder / 'index.md')}"]
    for part in navigation:
        ((title, pages),) = part.items()
        found = [line for line in _lines({title: pages}, folder) if "(decisions/0" not in line]
        lines += [f"## {title}", "\n".join(found)]
    return "\n\n".join(lines) + "\n"


def _lines(part: dict[str, Any], folder: Path) -> Iterator[str]:
    for title, pages in part.items():
        if isinstance(pages, str):
            yield f"- [{title}]({pages}): {_SENTENCE.match(_summary(folder / pages))[0]}"
            continue
        for page in pages:
            yield from _lines(page, folder)


def _summary(page: Path) -> str:
    """Return the first paragraph of a page, without links."""
    text = _FRONT_MATTER.sub("", page.read_text(encoding="utf-8"))
    paragraphs = [" ".join(one.split()) for one in text.split("\n\n") if re.match(r"\w", one)]
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", paragraphs[0])
