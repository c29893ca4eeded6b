"""Read pictures as upright images in one of a few modes, and write them."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from batchmill.errors import StepError
from batchmill.version import install_command

try:
    import numpy as np
    from PIL import Image, ImageColor, ImageOps, UnidentifiedImageError
except ImportError as error:
    raise StepError(f"Image steps need Pillow: {install_command('images')}") from error

Fit = Literal["contain", "cover", "stretch", "pad"]
Format = Literal["png", "jpeg", "webp", "same"]

# Formats with a signature that Pillow decodes itself. For EPS, it would start another program.
_READ = ("JPEG", "PNG", "GIF", "BMP", "PPM", "WEBP", "TIFF", "JPEG2000", "ICO", "AVIF")
_SAME = {"JPEG": "jpeg", "MPO": "jpeg", "WEBP": "webp"}
_SUFFIX = {"png": ".png", "jpeg": ".jpg", "webp": ".webp"}
# The modes that each format cannot store, and what they are converted to.
_CONVERTED: dict[str, dict[str, str]] = {
    "png": {},
    "jpeg": {"I;16": "L", "LA": "L", "RGBA": "RGB"},
    "webp": {"I;16": "RGB", "L": "RGB", "LA": "RGBA"},
}
_BITS_16 = 65_535
_FILTER = Image.Resampling.LANCZOS
_SHOWN_BYTES = 16


def opaque(colour: str) -> str:
    """Check that a colour is opaque.

    Args:
        colour: A name or a hexadecimal code that Pillow accepts.

    Returns:
        The same colour.

    Raises:
        ValueError: It is unknown or transparent.
    """
    if len(ImageColor.getrgb(colour)) > 3:
        raise ValueError("name an opaque colour, such as white or #20a0ff")
    return colour


class Picture(NamedTuple):
    """The first frame of a picture.

    Attributes:
        image: The frame, upright, in the mode L, LA, RGB, RGBA, I;16 or F.
        facts: The columns about the source.
        format: The format to write for "same".
        profile: The ICC profile. Empty without one.
    """

    image: Image.Image
    facts: dict[str, Any]
    format: str
    profile: bytes


@contextmanager
def open_picture(source: Path, max_pixels: int) -> Iterator[Picture]:
    """Read a picture. Within the block, Pillow's own limit of pixels is `max_pixels`.

    Args:
        source: The picture.
        max_pixels: Larger pictures are rejected.

    Yields:
        The picture.

    Raises:
        ValueError: It is not a picture, is damaged, or is too large.
    """
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = max_pixels
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield _read(source)
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise ValueError(
            f"it is too large: {error} To read it anyway, set max_pixels (now {max_pixels:,})."
        ) from error
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _read(source: Path) -> Picture:
    try:
        with Image.open(source, formats=_READ) as file:
            if file.format == "PNG":
                file.verify()  # Only verify() checks the checksums of the pixels.
        with Image.open(source, formats=_READ) as file:
            frames = getattr(file, "n_frames", 1)
            file.load()
            upright = _upright(file)
    except UnidentifiedImageError as error:
        raise ValueError(_what_it_is(source)) from error
    except SyntaxError as error:  # Pillow raises this for violations of the format.
        raise ValueError(f"it is damaged: {error}") from error
    facts = {
        "source": source.name,
        "source_width": upright.width,
        "source_height": upright.height,
        "source_mode": upright.mode,
        "source_format": file.format,
        "frames": frames,
    }
    if not upright.width or not upright.height:
        raise ValueError(f"it has no pixels ({upright.width} x {upright.height})")
    profile = upright.info.get("icc_profile") or b""
    image = _simple(upright)
    image.info = {}  # Pillow would write some of it to the new file.
    return Picture(image, facts, _SAME.get(file.format or "", "png"), profile)


def _what_it_is(source: Path) -> str:
    with source.open("rb") as file:
        start = file.read(_SHOWN_BYTES)
    if not start:
        return "it is empty (0 bytes)"
    return (
        f"it is not a picture, or its header is damaged: it begins with {start!r}. "
        f"Supported formats: {', '.join(_READ)}"
    )


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except SyntaxError:
        # Unreadable EXIF data is ignored, as Pillow does for JPEG.
        return image.copy()


def _simple(image: Image.Image) -> Image.Image:
    """Convert a picture of any mode to L, LA, RGB, RGBA, I;16 or F."""
    if image.mode == "F":
        if not np.isfinite(np.asarray(image)).all():
            raise ValueError("it has samples that are not finite numbers")
        return image.copy()
    if image.mode.startswith("I"):
        samples = np.asarray(image)
        if samples.min() < 0 or samples.max() > _BITS_16:
            raise ValueError(
                f"its samples range from {samples.min()} to {samples.max()}: samples outside of "
                "0 to 65535 would be cut off"
            )
        return Image.fromarray(samples.astype(np.uint16))
    grey = image.mode in ("1", "L", "LA", "La")
    if image.has_transparency_data:
        return image.convert("LA" if grey else "RGBA")
    return image.convert("L" if grey else "RGB")


def fitted(image: Image.Image, width: int, height: int, fit: Fit, background: str) -> Image.Image:
    """Resize a picture.

    Args:
        image: The picture.
        width: The width in pixels.
        height: The height in pixels.
        fit: As in `batchmill.steps.images.resize`.
        background: The colour of the padding.

    Returns:
        The new picture.
    """
    if fit == "stretch":
        return image.resize((width, height), _FILTER)
    if fit == "cover":
        return ImageOps.fit(image, (width, height), _FILTER)
    scale = min(width / image.width, height / image.height)
    inner = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    scaled = image.resize(inner, _FILTER)
    if fit == "contain":
        return scaled
    whole = Image.new(image.mode, (width, height), _fill(background, image.mode))
    whole.paste(scaled, ((width - inner[0]) // 2, (height - inner[1]) // 2))
    return whole


def _fill(background: str, mode: str) -> Any:
    """Return a colour as a pixel of a mode. It is 0 in the mode F."""
    if mode == "F":
        return 0.0
    if mode == "I;16":
        return _fill(background, "L") * 257
    return ImageColor.getcolor(background, mode)


def _in_mode(image: Image.Image, mode: str, background: str) -> Image.Image:
    """Convert a picture of 8 or 16 bits to an 8-bit mode."""
    if image.mode == "I;16":
        # Scaled to 0..255 and rounded. All pictures are scaled in the same way.
        samples = (np.asarray(image).astype(np.uint32) + 128) // 257
        image = Image.fromarray(samples.astype(np.uint8))
    if image.mode.endswith("A") and not mode.endswith("A"):
        behind = Image.new("RGBA", image.size, _fill(background, "RGBA"))
        image = Image.alpha_composite(behind, image.convert("RGBA"))
    return image.convert(mode)


def write_picture(
    image: Image.Image,
    picture: Picture,
    out: Path,
    stem: str,
    form: Format,
    quality: int,
    background: str,
) -> dict[str, Any]:
    """Write an image that was made from a picture.

    Args:
        image: The image to write.
        picture: The source of the image.
        out: The folder for the file.
        stem: The file's name without suffix.
        form: The format. "same": the picture's.
        quality: The quality of JPEG and WebP.
        background: The colour behind transparent parts if the format has no transparency.

    Returns:
        The columns about the file.

    Raises:
        ValueError: The format cannot hold the image's samples.
    """
    chosen = picture.format if form == "same" else form
    if image.mode == "F":
        raise ValueError(
            f"its samples are floating-point numbers, which {chosen} cannot hold. "
            "Use to_tensor with dtype=float32."
        )
    mode = _CONVERTED[chosen].get(image.mode, image.mode)
    if mode != image.mode:
        image = _in_mode(image, mode, background)
    options: dict[str, Any] = {} if chosen == "png" else {"quality": quality}
    # A colour profile is valid only for the kind of pixels that it describes.
    if picture.profile[16:20] == (b"RGB " if mode.startswith("RGB") else b"GRAY"):
        options["icc_profile"] = picture.profile
    name = stem + _SUFFIX[chosen]
    image.save(out / name, chosen.upper(), **options)
    return {
        "output": name,
        "source": picture.facts["source"],
        "width": image.width,
        "height": image.height,
        "mode": mode,
    }


def samples_of(image: Image.Image, channels: int, dtype: str, background: str) -> np.ndarray:
    """Return a picture's samples, [channels, height, width].

    Args:
        image: The picture.
        channels: 1 for grey, 3 for RGB, 4 for RGBA.
        dtype: uint8 or float32.
        background: The colour behind transparent parts, unless there are 4 channels.

    Raises:
        ValueError: The samples are floating-point numbers and the type is not float32.
    """
    if image.mode == "F" and dtype != "float32":
        raise ValueError("its samples are floating-point numbers: use dtype=float32")
    if image.mode in ("F", "I;16") and dtype == "float32":
        # Converted directly, because 8 bits would keep only 256 shades.
        shades = np.asarray(image, np.float32) / (1 if image.mode == "F" else _BITS_16)
        stacked = np.repeat(shades[np.newaxis], channels, axis=0)
        stacked[3:] = 1.0  # Opaque, if there is a fourth channel.
        return stacked
    samples = np.asarray(_in_mode(image, {1: "L", 3: "RGB", 4: "RGBA"}[channels], background))
    stacked = samples.reshape(*samples.shape[:2], channels).transpose(2, 0, 1)
    if dtype == "float32":
        return np.ascontiguousarray(stacked, np.float32) / np.float32(255)
    return np.ascontiguousarray(stacked)
