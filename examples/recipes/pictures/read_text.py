"""Read the texts in pictures with RapidOCR: a row and a cut-out for each text."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypedDict

import numpy as np
from PIL import Image, ImageOps
from rapidocr import RapidOCR


class Text(TypedDict):
    """One row of the table. The corners are in pixels."""

    output: str
    text: str
    score: float
    left: int
    top: int
    right: int
    bottom: int


@cache
def reader() -> RapidOCR:
    """Load the model, once in each worker process."""
    # There is a worker for each core, so a model needs only one thread.
    threads = {f"EngineConfig.onnxruntime.{kind}_op_num_threads": 1 for kind in ("intra", "inter")}
    return RapidOCR(params={"Global.log_level": "error", **threads})


def texts(source: Path, out: Path, *, min_score: float = 0.8) -> Iterator[Text]:
    """Yield the texts of a picture, and write a cut-out of each."""
    with Image.open(source) as opened:
        # Cameras store pictures on their side.
        picture = ImageOps.exif_transpose(opened).convert("RGB")
    found = reader()(np.asarray(picture)[:, :, ::-1])  # OpenCV's order of colours.
    if found.txts is None:
        return
    for number, (box, text, score) in enumerate(
        zip(found.boxes, found.txts, found.scores, strict=True)
    ):
        if score < min_score:
            continue
        left, top = (int(value) for value in np.floor(box.min(axis=0)))
        right, bottom = (int(value) for value in np.ceil(box.max(axis=0)))
        name = f"{number:03}.png"
        picture.crop((left, top, right, bottom)).save(out / name)
        yield {
            "output": name,
            "text": text,
            "score": round(float(score), 3),
            "left": left,
            "top": top,
            "right": right,
            "bottom": bottom,
        }
