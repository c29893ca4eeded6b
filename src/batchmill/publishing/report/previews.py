"""Make previews of files: thumbnails of pictures, and the beginning of texts and tables."""

import base64
import codecs
import io
import warnings
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

_PICTURES = {".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp", ".avif", ".tif", ".tiff"}
_SOUNDS = {".wav", ".mp3", ".flac", ".ogg", ".oga", ".opus", ".m4a", ".aac"}
# Larger files, and files after this number of bytes of all files, have no preview.
_FILE_BYTES, _ALL_BYTES = 16 * 2**20, 64 * 2**20
_TEXT_BYTES, _TEXT_CHARACTERS = 2400, 600
_ROWS, _COLUMNS, _CELL_CHARACTERS = 5, 8, 40
# The limits of thumbnails.
_SIDE = 240
_MAX_PIXELS = 30_000_000
# Formats that Pillow decodes itself. For EPS, it would start another program.
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "AVIF")
# Other modes have a range of values that a thumbnail cannot show.
_MODES = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"}


class Preview(NamedTuple):
    """The part of a file that a page shows.

    Attributes:
        kind: The kind of the file.
        size: The size of the file in bytes.
        picture: A thumbnail as a data URL. Empty without one.
        text: The beginning of a text.
        rows: The first rows of a table, and before them the names of its columns.
    """

    kind: Literal["picture", "sound", "text", "table", "other"]
    size: int
    picture: str = ""
    text: str = ""
    rows: Sequence[Sequence[str]] = ()


class Previewer:
    """Makes previews of some files, within limits for all of them. Damaged files are harmless.

    Args:
        embedded_bytes: After this number of bytes, no thumbnail follows, so that a page stays
            small.
    """

    def __init__(self, embedded_bytes: int) -> None:
        self._bytes, self._embedded = _ALL_BYTES, embedded_bytes

    def preview(self, name: str, file: pa.NativeFile) -> Preview:
        """Return the preview of an open file.

        Args:
            name: The name of the file. Its suffix names the kind of pictures, sounds and tables.
            file: The file. Only as much as needed is read.
        """
        suffix, size = PurePosixPath(name).suffix.lower(), file.size()
        if suffix in _PICTURES:
            return Preview("picture", size, picture=self.thumbnail(name, file))
        if suffix in _SOUNDS:
            return Preview("sound", size)
        if suffix == ".parquet" and self._accept(size):
            return Preview("table", size, rows=_first_rows(file))
        text = _beginning(file.read(_TEXT_BYTES), is_whole=size <= _TEXT_BYTES)
        return Preview("text" if text else "other", size, text=text)

    def thumbnail(self, name: str, file: pa.NativeFile) -> str:
        """Return a thumbnail as a data URL.

        It is empty if the file is no picture, is damaged or too large, or without Pillow.
        """
        is_picture = PurePosixPath(name).suffix.lower() in _PICTURES
        if not is_picture or self._embedded <= 0 or not self._accept(file.size()):
            return ""
        data = file.read()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Files that are a little damaged.
                small = _thumbnail(data)
        except Exception:
            # Pillow raises errors of many types for damaged files. None of them may end a run.
            return ""
        if not small:
            return ""
        picture = f"data:image/jpeg;base64,{base64.b64encode(small).decode()}"
        self._embedded -= len(picture)
        return picture

    def _accept(self, size: int) -> bool:
        """Return whether a file of this size can be read, and count its bytes."""
        if size > min(_FILE_BYTES, self._bytes):
            return False
        self._bytes -= size
        return True


def _beginning(data: bytes, *, is_whole: bool) -> str:
    """Return the beginning of a text; empty if the data is no text."""
    try:
        # The last character may be incomplete.
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(data, final=is_whole)
    except UnicodeDecodeError:
        return ""
    if "\0" in text:
        return ""
    return text if is_whole and len(text) <= _TEXT_CHARACTERS else f"{text[:_TEXT_CHARACTERS]} ..."


def _first_rows(file: pa.NativeFile) -> list[list[str]]:
    """Return the names of the first columns, and the first rows; nothing if it is damaged."""
    try:
        table = pq.ParquetFile(file)
        names = table.schema_arrow.names[:_COLUMNS]
        batch = next(table.iter_batches(_ROWS, columns=names), None)
    except (OSError, pa.ArrowException):
        return []
    rows = batch.to_pylist() if batch else []
    return [names, *([_cell(row[name]) for name in names] for row in rows)]


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= _CELL_CHARACTERS else f"{text[:_CELL_CHARACTERS]} ..."


def _thumbnail(data: bytes) -> bytes:
    """Return a small copy of a picture as a JPEG of at most 240 pixels each way.

    It is empty if the picture has too many pixels, or a mode that is not supported. Raises errors
    of many types for a damaged picture, and ImportError without Pillow.
    """
    from PIL import Image, ImageOps

    with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
        if image.width * image.height > _MAX_PIXELS or image.mode not in _MODES:
            return b""
        image.draft("RGB", (2 * _SIDE, 2 * _SIDE))  # Decodes a large JPEG several times faster.
        small = ImageOps.exif_transpose(image)
        small.thumbnail((_SIDE, _SIDE))
        if small.has_transparency_data:
            behind = Image.new("RGBA", small.size, "white")
            small = Image.alpha_composite(behind, small.convert("RGBA"))
        file = io.BytesIO()
        small.convert("RGB").save(file, "JPEG", quality=80)
        return file.getvalue()
