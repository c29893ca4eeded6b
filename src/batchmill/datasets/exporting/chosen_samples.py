"""Choose the samples to export: their files, keys and rows, in the order of the export."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from batchmill.core.digests import readable_id
from batchmill.core.layout import FILES, INPUT_COLUMN, PARTITION_COLUMN
from batchmill.core.ledger.open import open_ledger
from batchmill.core.ledger.recorded_outputs import file_names, listed_outputs
from batchmill.core.ledger.state import State
from batchmill.core.manifest.arrow_columns import tensors_as_lists
from batchmill.core.planning.run_spec import input_places
from batchmill.core.storage import open_store
from batchmill.core.urls import join, last_part
from batchmill.datasets.reading.published import read_published
from batchmill.datasets.reading.selection import Selection, chosen_rows, further_places, named
from batchmill.errors import OptionError, StoreError

_TEXT = pa.large_string()
_FURTHER = pa.struct([(name, pa.string()) for name in ("column", "suffix", "place", "content")])
_UNASSIGNED = "unassigned"
_SUFFIX = re.compile(r"[a-z0-9_]{1,16}")


class ExportRows(NamedTuple):
    """The samples to export, in order.

    Attributes:
        table_hash: The hash of the published table.
        root: The folder or URL of the files.
        are_inputs: True if the files are the inputs.
        samples: The columns key, suffix, place, content, size, split and further of each sample.
            The split is empty in a dataset without partitions. `further` lists the column, suffix,
            place and content of each further file.
        further: The columns with further files.
        labels: The texts of each column with class labels. Its values are their numbers.
        rows: The published row of each sample.
    """

    table_hash: str
    root: str
    are_inputs: bool
    samples: pa.Table
    further: Sequence[str]
    labels: Mapping[str, Sequence[str]]
    rows: pa.Table


def choose_rows(
    selection: Selection,
    *,
    shuffle: int | None = None,
    version: int | str | None = None,
    class_labels: Sequence[str] = (),
) -> ExportRows:
    """Read a dataset's table, and return the samples to export.

    Args:
        selection: The dataset, and the rows to export.
        shuffle: The seed of a random order. None: the order of the table.
        version: The number or name of a version. None: the last one.
        class_labels: Columns with few texts, which become the numbers of these texts. A number
            depends on all rows of the version, so parts that are exported alone agree.

    Returns:
        The samples.

    Raises:
        OptionError: There is no such dataset, version, partition or column, or no sample is left.
        LedgerError: The table differs from the table that a run published.
        StoreError: The table cannot be read, or a file is missing.
    """
    dataset = selection.dataset
    published = read_published(dataset, version=version, stale=selection.stale)
    added = published.added
    files = named(published.table, dataset, added.pack)
    files = files.only(chosen_rows(files.rows, selection, option="--where"))
    if not len(files.rows):
        raise OptionError(f"{dataset}: no sample to export. Check --partition and --where.")
    root, places = dataset, files.places
    if files.are_inputs:
        spec = published.spec
        if spec.folders:
            raise OptionError(
                f"{dataset}: its step wrote no files, and its inputs are folders, which cannot be "
                "samples. Use a step that writes files."
            )
        root, places = spec.root, input_places(spec, places)
    inputs, ids = files.rows[INPUT_COLUMN].to_pylist(), files.ids.to_pylist()
    keys = [sample_key(*names) for names in zip(inputs, ids, strict=True)]
    if len(set(keys)) != len(keys):
        raise OptionError(f"{dataset}: two samples have the same key. Export a part: --where.")
    state = open_ledger(dataset).files.read_state(published.version)
    contents, sizes = _recorded(state, files.places, root, are_inputs=files.are_inputs)
    columns = {
        name: further_places(files.rows, name, added.packs[name], dataset) for name in added.further
    }
    # The output of a row without an `output` of its own is its first further file.
    columns = {name: places for name, places in columns.items() if places != files.places}
    further, more = _further_files(dataset, state, columns, len(files.rows))
    samples = pa.table(
        {
            "key": keys,
            "suffix": [_suffix(place) for place in places.to_pylist()],
            "place": places,
            "content": contents,
            "size": pc.add(sizes, more),
            "split": _splits(files.rows, dataset),
            "further": further,
        }
    )
    order = _order(samples, shuffle)
    # Readers of the export have no use for addresses in the dataset.
    rows = files.rows.drop_columns(sorted(added.added - {added.stale}))
    rows = tensors_as_lists(rows).take(order)
    labels = {name: _texts(published.table, name) for name in class_labels}
    for name, texts in labels.items():
        numbers = pc.index_in(rows[name].cast(_TEXT), pa.array(texts, _TEXT)).cast(pa.int64())
        rows = rows.set_column(rows.column_names.index(name), name, numbers)
    return ExportRows(
        table_hash=published.version.table,
        root=root,
        are_inputs=files.are_inputs,
        samples=samples.take(order),
        further=list(columns),
        labels=labels,
        rows=rows,
    )


def _texts(table: pa.Table, name: str) -> list[str]:
    """Return the texts of a column in order. Raises OptionError if it has no texts."""
    if name not in table.column_names:
        raise OptionError(f"--class-label {name}: the table has no such column.")
    if not (pa.types.is_string(kind := table[name].type) or pa.types.is_large_string(kind)):
        raise OptionError(f"--class-label {name}: has {kind} instead of texts.")
    return sorted(pc.unique(table[name].drop_null()).to_pylist())


def _further_files(
    dataset: str, state: State, columns: Mapping[str, pa.Array], count: int
) -> tuple[pa.Array, np.ndarray]:
    """Return the further files of each sample, and the sum of their sizes."""
    listed: list[list[dict[str, str]]] = [[] for _ in range(count)]
    total = np.zeros(count, np.int64)
    for name, places in columns.items():
        there = np.flatnonzero(pc.not_equal(places, "").to_numpy(zero_copy_only=False))
        file_places = places.take(pa.array(there))
        contents, sizes = _recorded(state, file_places, dataset, are_inputs=False)
        total[there] += sizes.to_numpy()
        files = zip(there.tolist(), file_places.to_pylist(), contents.to_pylist(), strict=True)
        for row, place, content in files:
            listed[row].append(
                {"column": name, "suffix": _suffix(place), "place": place, "content": content}
            )
    return pa.array(listed, pa.list_(_FURTHER)), total


def sample_key(name: str, sample_id: str) -> str:
    """Return the key of a sample: it is unique, and stays when the content changes.

    Args:
        name: The name of the input.
        sample_id: The id of the sample, as `open_dataset` returns it.

    >>> sample_key("speech/a.1.wav", "files/a-1-ae53ac10e51459de.9e78d7274524/0001.flac")
    'speech-a-1-0001-f1027555e2243b68'
    """
    # The folder of the outputs is named after the input and the contents.
    within = sample_id.removeprefix(name)
    if sample_id.startswith(f"{FILES}/"):
        within = sample_id.split("/", 2)[-1]
    readable = " ".join(part.rpartition(".")[0] or part for part in (name, within))
    return readable_id("sample", readable, f"{name}\n{within}")


def _suffix(place: str) -> str:
    """Return the suffix in lower case, without the dot. Readers choose a decoder by it.

    >>> _suffix("files/a/0.JPG"), _suffix("files/a.b/0"), _suffix("https://host/0.png?v=2")
    ('jpg', 'bin', 'png')
    """
    name, _, suffix = last_part(place).lower().rpartition(".")
    return suffix if name and _SUFFIX.fullmatch(suffix) else "bin"


def _recorded(
    state: State, places: pa.Array, root: str, *, are_inputs: bool
) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Return the hash of each file (or "") and its size, as a version has recorded them."""
    if are_inputs:
        records = state.records([INPUT_COLUMN, "content", "size", "companions"])
        paths, contents, sizes = (records[name] for name in (INPUT_COLUMN, "content", "size"))
        # With companions, the recorded hash is that of all files together.
        contents = pc.if_else(records["companions"].is_null(), contents, "")
    else:
        records = state.records(["outputs"])
        paths, files = file_names(records), listed_outputs(records)
        sizes, contents = (pc.struct_field(files, name) for name in ("size", "content"))
    at = pc.index_in(places, paths.cast(_TEXT))
    contents, sizes = contents.take(at), sizes.take(at)
    known = pc.fill_null(pc.greater_equal(sizes, 0), False)
    if not pc.all(known).as_py():
        # The dataset has no record of these files, or a web server gives no size.
        unknown = pc.invert(known).combine_chunks()
        names = places.filter(unknown).to_pylist()
        stored_sizes = [*open_store(root).sizes(names)]
        if None in stored_sizes:
            place = join(root, names[stored_sizes.index(None)])
            raise StoreError(place, "is missing. Check it with batchmill verify.")
        measured = pc.max_element_wise(pa.array(stored_sizes, pa.int64()), 0)
        sizes = pc.replace_with_mask(sizes.combine_chunks(), unknown, measured)
    return pc.fill_null(contents, ""), sizes


def _splits(rows: pa.Table, dataset: str) -> pa.Array:
    """Return the name of each row's split: its partition, with letters, digits and _ only.

    Raises OptionError if two partitions would be one split.
    """
    if PARTITION_COLUMN not in rows.column_names:
        return pa.array([""] * len(rows))
    partitions = rows[PARTITION_COLUMN].cast(_TEXT)
    partitions = pc.if_else(pc.fill_null(pc.equal(partitions, ""), True), _UNASSIGNED, partitions)
    splits = pc.replace_substring_regex(partitions, r"[^A-Za-z0-9_]", "_")
    names = pc.unique(partitions)
    if len(names) > len(pc.unique(splits)):
        raise OptionError(
            f"{dataset}: some of its partitions have names that differ only in signs, and would be "
            f"one split: {', '.join(sorted(map(repr, names.to_pylist())))}. Rename one, or "
            "export each alone: --partition."
        )
    return splits


def _order(samples: pa.Table, shuffle: int | None) -> np.ndarray:
    """Return the order of the samples. Samples of one split are together."""
    splits = samples["split"].to_pandas().rank(method="dense").to_numpy()
    if shuffle is None:
        return np.argsort(splits, kind="stable")
    keys = samples["key"].to_pylist()
    # The place of a sample does not depend on the other samples.
    hashes = [xxhash.xxh3_64_intdigest(f"{shuffle} {key}".encode()) for key in keys]
    return np.lexsort((np.array(hashes, dtype=np.uint64), splits))
