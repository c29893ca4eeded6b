"""Write eight small PDFs, of which five are bad. Usage: python make.py FOLDER"""

import io
import sys
import zlib
from pathlib import Path

from pypdf import PdfWriter

FERRY = ["The first ferry leaves at six in the morning.", "Tickets are sold on board."]
KILN = ["The kiln needs nine hours to reach 1,240 degrees."]


def pdf(contents, title="", copies=1):
    """Return a PDF with a page for each content stream, all of them `copies` times."""
    pages = range(5, 5 + 2 * len(contents), 2)
    kids = " ".join(f"{page} 0 R" for page in [*pages] * copies)
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Count {len(pages) * copies} /MediaBox [0 0 595 842] /Kids [{kids}] >>",
        f"<< /Title ({title}) >>" if title else "<< >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for page, content in zip(pages, contents, strict=True):
        stream = zlib.compress(content, 9)
        head = f"<< /Length {len(stream)} /Filter /FlateDecode >>\nstream\n"
        resources = "/Resources << /Font << /F1 4 0 R >> >>"
        objects += [
            f"<< /Type /Page /Parent 2 0 R {resources} /Contents {page + 1} 0 R >>",
            f"{head}{stream.decode('latin-1')}\nendstream",
        ]
    out, table = b"%PDF-1.7\n", f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n"
    for number, content in enumerate(objects, 1):
        table += f"{len(out):010} 00000 n \n"
        out += f"{number} 0 obj\n{content}\nendobj\n".encode("latin-1")
    trailer = f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R /Info 3 0 R >>\n"
    return out + f"{table}{trailer}startxref\n{len(out)}\n%%EOF\n".encode()


def shown(text):
    """Return a content stream that shows one line."""
    return f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET\n".encode()


def locked(content, password):
    """Return an encrypted PDF."""
    writer, out = PdfWriter(clone_from=io.BytesIO(content)), io.BytesIO()
    writer.encrypt(password, algorithm="AES-256")
    writer.write(out)
    return out.getvalue()


def main(folder):
    """Write the files."""
    folder.mkdir(parents=True, exist_ok=True)
    ferry = pdf([shown(line) for line in FERRY], "The ferry")
    files = {
        "ferry.pdf": ferry,
        "kiln.pdf": pdf([shown(line) for line in KILN]),
        "scan.pdf": pdf([b"0.9 g 0 0 595 842 re f\n"], "A scan"),
        "locked.pdf": locked(ferry, "open-sesame"),
        "half.pdf": ferry[: len(ferry) // 2],
        "not-found.pdf": b"<!doctype html><title>404 Not Found</title>",
        # A thousand pages, each with five million spaces that pypdf skips one by one.
        "slow.pdf": pdf([b" " * 5_000_000 + shown("x")], copies=1000),
        # A line of seventy million letters.
        "huge.pdf": pdf([shown("x" * 70_000_000)]),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
