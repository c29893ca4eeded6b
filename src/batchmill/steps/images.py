"""Steps for pictures, through Pillow (extra `images`): other sizes, tiles, arrays."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from batchmill.steps.pixels import (
    Fit,
    Format,
    fitted,
    opaque,
    open_picture,
    write_picture,
    write_samples,
)
from batchmill.steps.windows import windows

_LARGEST_SIDE = 16_383  # WebP's.
_MAX_PIXELS = 89_478_485  # Where Pillow begins to warn.


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

    `fit` says what becomes of its shape: "contain" keeps it, and is as large as fits in; "pad"
    fills what that leaves with `background`; "cover" cuts off evenly what stands out; "stretch"
    distorts it. `format` "same" is that of a JPEG, PNG or WebP; all others become PNG. `quality`
    is that of JPEG and WebP.

    Returns `output`, `source` (the picture's file name), `width`, `height` and `mode` (Pillow's),
    and of the source `source_width`, `source_height` (upright), `source_mode`, `source_format` and
    `frames`, of which the first is taken.

    Raises ValueError for a picture that is none, is empty, damaged, larger than `max_pixels`, or
    has samples that the format cannot hold; OSError for one that is truncated.
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
    """Cut the picture into squares of `size` pixels, which overlap by `overlap` pixels.

    With `include_last`, what is left at the right and at the bottom becomes smaller tiles, so that
    the tiles cover the picture; none lies in another. Without it, all tiles are whole, and a
    picture that is smaller than one has none.

    Returns for each tile, row by row: `output`, `source`, `tile` (its number from 0), `x` and `y`
    (of its upper left corner, in the upright picture), and the rest as `resize` does.

    Raises ValueError and OSError as `resize` does, and ValueError if `overlap` is not below `size`.
    """
    with open_picture(source, max_pixels) as picture:
        image = picture.image
        rows = list(windows(image.height, size, overlap, include_last=include_last))
        columns = list(windows(image.width, size, overlap, include_last=include_last))
        tiles = []
        for number, ((top, bottom), (left, right)) in enumerate(
            (row, column) for row in rows for column in columns
        ):
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
    """Write the picture as a NumPy file: [channels, height, width], grey, RGB or RGBA.

    uint8 is 0 to 255, float32 is 0 to 1; of a picture with floating-point samples, the samples as
    they are. Transparent parts show `background`, unless there are 4 channels.

    Returns `output`, `source`, `channels`, `height`, `width`, `dtype`, and the rest as `resize`
    does. Raises ValueError and OSError as `resize` does.
    """
    with open_picture(source, max_pixels) as picture:
        image = fitted(picture.image, width, height, fit, background)
        write_samples(image, out / "tensor.npy", channels, dtype, background)
        return {
            "output": "tensor.npy",
            "source": source.name,
            "channels": channels,
            "height": image.height,
            "width": image.width,
            "dtype": dtype,
        } | picture.facts
