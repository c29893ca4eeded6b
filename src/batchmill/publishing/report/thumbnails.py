"""Make small copies of pictures (extra `images`)."""

import base64
import io
import warnings

from PIL import Image, ImageOps

_SIDE = 240
_MAX_PIXELS = 30_000_000
# Formats that Pillow decodes itself. For EPS, it would start another program.
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "AVIF")
# Other modes have a range of values that a thumbnail cannot show.
_MODES = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"}


def thumbnail(data: bytes) -> str:
    """Return a small copy of a picture as a data URL.

    Args:
        data: The content of the file.

    Returns:
        The URL of a JPEG of at most 240 pixels each way. Empty if the picture is damaged, has too
        many pixels, or has a format or a mode that is not supported.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Files that are a little damaged.
            small = _small(data)
    except Exception:
        # Pillow raises errors of many types for damaged files. None of them may end a run.
        return ""
    if small is None:
        return ""
    file = io.BytesIO()
    small.save(file, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def _small(data: bytes) -> Image.Image | None:
    with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
        if image.width * image.height > _MAX_PIXELS or image.mode not in _MODES:
            return None
        image.draft("RGB", (2 * _SIDE, 2 * _SIDE))  # Decodes a large JPEG several times faster.
        small = ImageOps.exif_transpose(image)
        small.thumbnail((_SIDE, _SIDE))
        if not small.has_transparency_data:
            return small.convert("RGB")
        behind = Image.new("RGBA", small.size, "white")
        return Image.alpha_composite(behind, small.convert("RGBA")).convert("RGB")
