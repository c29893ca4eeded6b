"""A step that makes thumbnails, and the pictures for it: python flowers.py FOLDER."""

import sys
from math import cos, pi, sin
from pathlib import Path
from random import Random

from PIL import Image, ImageDraw


def draw(path, seed):
    """Draw a flower with random colours, petals and size."""
    random = Random(seed)
    width, height = random.randint(300, 700), random.randint(300, 500)
    meadow = (random.randint(40, 90), random.randint(80, 150), 70)
    picture = Image.new("RGB", (width, height), meadow)
    pen = ImageDraw.Draw(picture)
    petals, size = random.randint(5, 9), height / random.uniform(7, 10)
    colour = tuple(random.randint(60, 250) for _ in range(3))
    for petal in range(petals):
        turn = 2 * pi * petal / petals
        x, y = width / 2 + 1.4 * size * cos(turn), height / 2 + 1.4 * size * sin(turn)
        pen.ellipse((x - size, y - size, x + size, y + size), fill=colour)
    x, y, size = width / 2, height / 2, 0.8 * size
    pen.ellipse((x - size, y - size, x + size, y + size), fill=(250, 210, 70))
    picture.save(path, quality=85)


def thumbnails(source, out, side=128):
    """Make a picture smaller."""
    with Image.open(source) as picture:
        width, height = picture.size
        picture.thumbnail((side, side))
        picture.save(out / "thumbnail.png")
    return {"output": "thumbnail.png", "width": width, "height": height}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir()
    for number in range(151):
        path = folder / f"flower_{number:03}.jpg"
        draw(path, number)
        if number % 25 == 3:  # Cut off, as after a failed download.
            path.write_bytes(path.read_bytes()[: 900 + number])
