"""Thumbnails of pictures, made by Pillow if it is installed."""

import base64
import io
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

_SIDE = 240
_MAX_PIXELS = 30_000_000
# Formats that Pillow decodes itself. For EPS, it would start another program.
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "AVIF")
# Other modes have a range of values that a thumbnail cannot show.
_MODES = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"}


def small_picture(data: bytes) -> "Image.Image | None":
    """Return a small copy of a picture, of at most 240 pixels each way, as RGB.

    Returns None if the picture has too many pixels, or a mode that is not supported.

    Raises:
        Exception: The picture is damaged. Pillow raises errors of many types.
        ImportError: Pillow is missing.
    """
    from PIL import Image, ImageOps

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Files that are a little damaged.
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            if image.width * image.height > _MAX_PIXELS or image.mode not in _MODES:
                return None
            image.draft("RGB", (2 * _SIDE, 2 * _SIDE))  # Decodes a large JPEG several times faster.
            small = ImageOps.exif_transpose(image)
            small.thumbnail((_SIDE, _SIDE))
            if small.has_transparency_data:
                behind = Image.new("RGBA", small.size, "white")
                small = Image.alpha_composite(behind, small.convert("RGBA"))
            return small.convert("RGB")


def jpeg_url(image: "Image.Image") -> str:
    """Return a URL that holds a picture as a JPEG."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
