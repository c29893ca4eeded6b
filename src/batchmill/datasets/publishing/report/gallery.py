"""Choose samples of a dataset's files, and make their previews.

A preview is a thumbnail of a picture, or the beginning of a text or a table.
"""

import codecs
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchmill.core.layout import FILES, INPUT_COLUMN, METADATA, OUTPUT_COLUMN
from batchmill.core.ledger.table_metadata import TableMetadata
from batchmill.core.outcome import start_of
from batchmill.core.security.allowlist import refused_inputs
from batchmill.core.storage import Store, is_url
from batchmill.core.urls import join
from batchmill.datasets.publishing.report.pictures import jpeg_url, small_picture
from batchmill.errors import StoreError

PICTURES = {".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp", ".avif", ".tif", ".tiff"}
SOUNDS = {".wav", ".mp3", ".flac", ".ogg", ".oga", ".opus", ".m4a", ".aac"}
# Larger files, and files after this number of bytes of all files, have no preview.
_FILE_BYTES, _ALL_BYTES = 16 * 2**20, 64 * 2**20
_TEXT_BYTES, _TEXT_CHARACTERS = 2400, 600
_ROWS, _COLUMNS, _CELL_CHARACTERS = 5, 8, 40


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
        if suffix in PICTURES:
            return Preview("picture", size, picture=self.thumbnail(name, file))
        if suffix in SOUNDS:
            return Preview("sound", size)
        if suffix == ".parquet" and self._accept(size):
            return Preview("table", size, rows=_first_rows(file))
        text = _beginning(file.read(_TEXT_BYTES), is_whole=size <= _TEXT_BYTES)
        return Preview("text" if text else "other", size, text=text)

    def thumbnail(self, name: str, file: pa.NativeFile) -> str:
        """Return a thumbnail as a data URL.

        It is empty if the file is no picture, is damaged or too large, or without Pillow.
        """
        is_picture = PurePosixPath(name).suffix.lower() in PICTURES
        if not is_picture or self._embedded <= 0 or not self._accept(file.size()):
            return ""
        try:
            small = small_picture(file.read())
            picture = jpeg_url(small) if small else ""
        except Exception:
            # Pillow raises errors of many types for damaged files. None of them may end a run.
            return ""
        self._embedded -= len(picture)
        return picture

    def _accept(self, size: int) -> bool:
        """Return whether a file of this size can be read, and count its bytes."""
        if size > min(_FILE_BYTES, self._bytes):
            return False
        self._bytes -= size
        return True


class Sample(NamedTuple):
    """A file that the step wrote.

    Attributes:
        input: The input.
        output: The file, relative to the dataset.
        link: The URL of the file, relative to the page. Empty for a file in a pack.
        preview: The part of the file that the page shows.
    """

    input: str
    output: str
    link: str
    preview: Preview


class Gallery(NamedTuple):
    """Samples of a dataset's files.

    Attributes:
        samples: Files that the step wrote, evenly chosen, in the order of the table.
        failed: Thumbnails of failed inputs as data URLs, by the name of the input.
    """

    samples: Sequence[Sample]
    failed: Mapping[str, str]


class Limits(NamedTuple):
    """The largest number of samples, and the bytes of thumbnails after which no other follows."""

    samples: int
    embedded_bytes: int


PAGE = Limits(samples=24, embedded_bytes=2 * 2**20)


def gather_gallery(
    store: Store, failed: Sequence[str], root: str, limits: Limits = PAGE
) -> Gallery:
    """Choose samples of a local dataset. Nothing is read from a bucket.

    Args:
        store: The store of the dataset.
        failed: The names of failed inputs.
        root: The folder or URL that the inputs are relative to.
        limits: The limits of the page that shows the gallery.
    """
    if is_url(store.url):
        return Gallery([], {})
    previewer = Previewer(limits.embedded_bytes)
    return Gallery(
        list(_samples(store, previewer, limits.samples)),
        dict(_thumbnails(failed[: limits.samples], root, previewer)),
    )


def _samples(store: Store, previewer: Previewer, count: int) -> Iterator[Sample]:
    # Several rows may name the same file.
    rows = {output: (name, pack) for name, output, pack in chosen_rows(store, count)}
    for output, (name, pack) in rows.items():
        # A file that was deleted or replaced by a link has no sample.
        with suppress(StoreError), store.open(pack or output) as file:
            preview = previewer.preview(output, file)
            yield Sample(name, output, "" if pack else f"./{quote(output)}", preview)


def chosen_rows(store: Store, count: int) -> Iterator[tuple[str, str, str]]:
    """Yield at most `count` rows of the table that have an output, evenly chosen.

    Each has its input, its output, and the address in a pack, which is empty for a file. Nothing is
    chosen if the table is missing or damaged.
    """
    with suppress(OSError, pa.ArrowException, StoreError), store.open(METADATA) as file:
        table = pq.ParquetFile(file)
        if OUTPUT_COLUMN not in table.schema_arrow.names:
            return
        pack = TableMetadata.of(table.schema_arrow).pack
        packs = [pack] if pack else []
        starts = np.cumsum([0, *_counts(table)])
        chosen = np.unique(np.linspace(0, starts[-1] - 1, count).round().astype(int))
        for group, start in enumerate(starts[:-1]):
            here = chosen[(chosen >= start) & (chosen < starts[group + 1])] - start
            if not len(here):
                continue
            rows = table.read_row_group(group, [INPUT_COLUMN, OUTPUT_COLUMN, *packs])
            rows = rows.filter(pc.is_valid(rows[OUTPUT_COLUMN]))
            rows = rows.take(pa.array(here[here < len(rows)]))
            yield from (
                (row[INPUT_COLUMN], row[OUTPUT_COLUMN], row.get(pack) or "")
                for row in rows.to_pylist()
                # A manifest may have a column with this name, too.
                if str(row[OUTPUT_COLUMN]).startswith(f"{FILES}/")
            )


def _counts(table: pq.ParquetFile) -> Iterator[int]:
    """Yield the number of rows with an output in each row group."""
    for number in range(table.num_row_groups):
        group = table.metadata.row_group(number)
        columns = map(group.column, range(group.num_columns))
        output = next(column for column in columns if column.path_in_schema == OUTPUT_COLUMN)
        yield group.num_rows - (output.statistics.null_count if output.statistics else 0)


def _thumbnails(
    failed: Sequence[str], root: str, previewer: Previewer
) -> Iterator[tuple[str, str]]:
    paths = [join(root, name) for name in failed]
    refused = refused_inputs(paths)
    for number, (name, path) in enumerate(zip(failed, paths, strict=True)):
        # A pipe or a device cannot be read.
        if number in refused or is_url(path) or not os.path.isfile(path):
            continue
        with suppress(OSError), pa.OSFile(path) as file:
            picture = previewer.thumbnail(name, file)
            if picture:
                yield name, picture


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
        rows = batch.to_pylist() if batch else []
        return [names, *([_cell(row[name]) for name in names] for row in rows)]
    except Exception:
        # Arrow and Python raise errors of many types for values that Python does not have, such as
        # a date after the year 9999 or an unknown time zone. None of them may end a run.
        return []


def _cell(value: Any) -> str:
    return "" if value is None else start_of(str(value), _CELL_CHARACTERS)
