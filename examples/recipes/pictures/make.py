"""Draw four pictures, and write two damaged ones. Usage: python make.py FOLDER"""

import io
import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

ORIENTATION = 274


def drawn(lines, background, colour, size=(360, 220)):
    """Return a picture with lines of text."""
    picture = Image.new("RGB", size, background)
    draw = ImageDraw.Draw(picture)
    for number, line in enumerate(lines):
        draw.text((30, 25 + 60 * number), line, fill=colour, font=ImageFont.load_default(30))
    return picture


def saved(picture, kind, **options):
    """Return the bytes of a picture's file."""
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


def main(folder):
    """Write the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    ticket = drawn(["FERRY TICKET", "2 adults", "Total 9.00"], "white", "black")
    sign = drawn(["NO PARKING", "8 am to 6 pm"], (250, 200, 40), "black")
    label = drawn(["Tomatoes", "250 g"], (40, 110, 70), "white")
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    files = {
        "ticket.png": saved(ticket, "PNG"),
        # Stored on its side, as cameras do.
        "sign.jpg": saved(sign.transpose(Image.Transpose.ROTATE_90), "JPEG", exif=exif),
        "label.webp": saved(label, "WEBP"),
        "sky.jpg": saved(drawn([], (20, 70, 140), "white"), "JPEG"),
        "half.jpg": saved(sign, "JPEG")[:3000],
        "not-found.jpg": b"<!doctype html><title>404 Not Found</title>",
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
