"""Draw the three pictures. Usage: python make.py"""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

PICTURES = Path(__file__).parent / "pictures"
ORIENTATION = 274


def sunset():
    """Draw a picture that is stored on its side, with the orientation in EXIF."""
    picture = Image.new("RGB", (200, 300))
    for y in range(300):
        colour = (255 - y // 3, 160 - y // 3, 60 + y // 3) if y < 180 else (20, 40 + y // 6, 90)
        picture.paste(colour, (0, y, 200, y + 1))
    draw = ImageDraw.Draw(picture)
    draw.ellipse((70, 110, 130, 170), fill=(255, 240, 170))
    for wave in range(190, 300, 14):
        draw.arc((20, wave, 180, wave + 30), 200, 340, fill=(140, 180, 220), width=2)
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    stored = picture.transpose(Image.Transpose.ROTATE_90)
    stored.save(PICTURES / "sunset.jpg", quality=80, exif=exif)


def badge():
    """Draw a picture with a palette that has one transparent colour."""
    picture = Image.new("P", (160, 160), 0)
    picture.putpalette([255, 255, 255, 20, 90, 160, 250, 200, 40])
    draw = ImageDraw.Draw(picture)
    draw.ellipse((10, 10, 150, 150), fill=1)
    draw.regular_polygon((80, 80, 50), 6, fill=2)
    picture.save(PICTURES / "badge.png", transparency=0)


def depth():
    """Draw 16-bit distances, such as a depth camera records."""
    across, down = np.meshgrid(np.arange(120), np.arange(90))
    metres = 60_000 - 500 * np.hypot(across - 60, down - 45)
    Image.fromarray((metres // 1000 * 1000).astype(np.uint16)).save(PICTURES / "depth.png")


if __name__ == "__main__":
    sunset()
    badge()
    depth()
