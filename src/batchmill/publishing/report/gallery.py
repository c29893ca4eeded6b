"""Choose samples of a dataset's files, and make their previews."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchmill.errors import StoreError
from batchmill.layout import FILES, INPUT_COLUMN, METADATA, OUTPUT_COLUMN
from batchmill.ledger.published_tables import TableMetadata
from batchmill.publishing.report.previews import Preview, Previewer
from batchmill.storage import Store, is_url
from batchmill.urls import join


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
    for output, row in {row.output: row for row in chosen_rows(store, count)}.items():
        # A file that was deleted or replaced by a link has no sample.
        with suppress(StoreError), store.open(row.pack or output) as file:
            preview = previewer.preview(output, file)
            yield Sample(row.input, output, "" if row.pack else f"./{quote(output)}", preview)


class ChosenRow(NamedTuple):
    """The input, the output, and its address in a pack, which is empty for a file."""

    input: str
    output: str
    pack: str


def chosen_rows(store: Store, count: int) -> Iterator[ChosenRow]:
    """Yield at most `count` rows of the table that have an output, evenly chosen.

    Nothing is chosen if the table is damaged.
    """
    if not store.exists(METADATA):
        return
    with suppress(OSError, pa.ArrowException), store.open(METADATA) as file:
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
                ChosenRow(row[INPUT_COLUMN], row[OUTPUT_COLUMN], row.get(pack) or "")
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
    for name in failed:
        path = join(root, name)
        # A pipe or a device cannot be read.
        if is_url(path) or not os.path.isfile(path):
            continue
        with suppress(OSError), pa.OSFile(path) as file:
            picture = previewer.thumbnail(name, file)
            if picture:
                yield name, picture
