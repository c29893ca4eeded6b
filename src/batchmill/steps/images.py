"""Resize pictures, cut them into tiles, or convert them to arrays (extra `images`)."""

from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field

from batchmill.steps.pixels import (
    Fit,
    Format,
    fitted,
    opaque,
    open_picture,
    samples_of,
    write_picture,
)
from batchmill.steps.windows import windows

_LARGEST_SIDE = 16_383  # The limit of WebP.
_MAX_PIXELS = 89_478_485  # Pillow warns about larger pictures.

Side = Annotated[int, Field(ge=1, le=_LARGEST_SIDE)]
Quality = Annotated[int, Field(ge=1, le=100)]
Colour = Annotated[str, AfterValidator(opaque)]
Pixels = Annotated[int, Field(ge=1)]


def resize(
    source: Path,
    out: Path,
    *,
    width: Side = 256,
    height: Side = 256,
    fit: Fit = "contain",
    format: Format = "png",
    quality: Quality = 90,
    background: Colour = "white",
    max_pixels: Pixels = _MAX_PIXELS,
) -> dict[str, Any]:
    """Write the picture in another size.

    Args:
        source: The picture. If it has several frames, the first is used.
        out: The folder for the new picture.
        width: The width in pixels.
        height: The height in pixels.
        fit: "contain" keeps the shape and fits the picture into the size. "pad" then fills the rest
            with `background`. "cover" keeps the shape, fills the size and crops evenly. "stretch"
            distorts the picture.
        format: "same" keeps JPEG, PNG and WebP. Other formats become PNG.
        quality: The quality of JPEG and WebP.
        background: The colour behind transparent and padded parts.
        max_pixels: Larger pictures are rejected.

    Returns:
        A row with `output`, `source` (the picture's file name), `width`, `height` and `mode`
        (Pillow's), and about the source `source_width`, `source_height` (upright), `source_mode`,
        `source_format` and `frames`.

    Raises:
        ValueError: It is not a picture, is empty, damaged or larger than `max_pixels`, or has
            samples that the format cannot hold.
        OSError: It is truncated.
    """
    with open_picture(source, max_pixels) as picture:
        image = fitted(picture.image, width, height, fit, background)
        written = write_picture(image, picture, out, "picture", format, quality, background)
        return written | picture.facts


def tile(
    source: Path,
    out: Path,
    *,
    size: Side = 256,
    overlap: Annotated[int, Field(ge=0)] = 0,
    include_last: bool = True,
    format: Format = "png",
    quality: Quality = 90,
    background: Colour = "white",
    max_pixels: Pixels = _MAX_PIXELS,
) -> list[dict[str, Any]]:
    """Cut the picture into square tiles. No tile lies within another.

    Args:
        source: The picture.
        out: The folder for the tiles.
        size: The side of a tile in pixels.
        overlap: The pixels that a tile shares with the next.
        include_last: True to keep the rest at the right and the bottom as smaller tiles. If false,
            a picture smaller than a tile has no tiles.
        format: As in `resize`.
        quality: As in `resize`.
        background: As in `resize`.
        max_pixels: As in `resize`.

    Returns:
        A row per tile, from left to right and top to bottom: `output`, `source`, `tile` (its number
        from 0), `x` and `y` (its upper left corner in the upright picture), and the other columns
        of `resize`.

    Raises:
        ValueError: As `resize`, or `overlap` is not below `size`.
        OSError: The picture is truncated.
    """
    with open_picture(source, max_pixels) as picture:
        image = picture.image
        rows = windows(image.height, size, overlap, include_last=include_last)
        columns = windows(image.width, size, overlap, include_last=include_last)
        tiles = []
        for number, ((top, bottom), (left, right)) in enumerate(product(rows, columns)):
            piece = image.crop((left, top, right, bottom))
            written = write_picture(
                piece, picture, out, f"{number:04d}", format, quality, background
            )
            tiles.append(written | {"tile": number, "x": left, "y": top} | picture.facts)
        return tiles


def to_tensor(
    source: Path,
    out: Path,
    *,
    width: Side = 224,
    height: Side = 224,
    fit: Fit = "cover",
    channels: Literal[1, 3, 4] = 3,
    dtype: Literal["uint8", "float32"] = "uint8",
    background: Colour = "white",
    max_pixels: Pixels = _MAX_PIXELS,
) -> dict[str, Any]:
    """Write the picture as a NumPy file, [channels, height, width].

    Args:
        source: The picture.
        out: The folder for the file.
        width: The width in pixels.
        height: The height in pixels.
        fit: As in `resize`.
        channels: 1 for grey, 3 for RGB, 4 for RGBA.
        dtype: uint8 for 0 to 255, float32 for 0 to 1. Floating-point samples are kept unchanged.
        background: The colour behind transparent parts, unless there are 4 channels.
        max_pixels: Larger pictures are rejected.

    Returns:
        A row with `output`, `source`, `channels`, `height`, `width`, `dtype` and the columns of
        `resize` about the source.

    Raises:
        ValueError: As `resize`.
        OSError: The picture is truncated.
    """
    with open_picture(source, max_pixels) as picture:
        image = fitted(picture.image, width, height, fit, background)
        np.save(out / "tensor.npy", samples_of(image, channels, dtype, background))
        return {
            "output": "tensor.npy",
            "source": source.name,
            "channels": channels,
            "height": image.height,
            "width": image.width,
            "dtype": dtype,
        } | picture.facts
