"""Read PDFs: a row for each page."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

from pypdf import PdfReader


class Page(TypedDict):
    """One row of the table."""

    page: int
    pages: int
    title: str | None
    characters: int
    text: str


def pages(source: Path) -> Iterator[Page]:
    """Yield the pages of a PDF. PDF_PASSWORDS has the passwords of encrypted files."""
    reader = PdfReader(source)
    # Many files are encrypted with an empty password.
    passwords = ["", *os.environ.get("PDF_PASSWORDS", "").split()]
    if reader.is_encrypted and not any(map(reader.decrypt, passwords)):
        raise ValueError("the file is encrypted. Add its password to PDF_PASSWORDS.")
    title = reader.metadata.title if reader.metadata else None
    for number, page in enumerate(reader.pages, 1):
        text = page.extract_text()
        yield {
            "page": number,
            "pages": len(reader.pages),
            "title": title,
            "characters": len(text),
            "text": text,
        }
