"""Open a dataset's files and labels as a torch Dataset."""

import operator
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from torch.utils.data import Dataset, get_worker_info

from batchmill.core.layout import PARTITION_COLUMN
from batchmill.core.manifest.arrow_columns import tensors_as_lists
from batchmill.core.options.conditions import exact_frame
from batchmill.core.security.allowlist import check_input
from batchmill.core.storage import is_url, obstore_s3, open_store, remote, transfer
from batchmill.core.storage.addresses import parse_address
from batchmill.core.storage.local import remove_folder
from batchmill.core.storage.scratch import scratch_folder
from batchmill.core.storage.store import ahead_in_threads
from batchmill.core.urls import absolute, join, last_part
from batchmill.datasets.reading.memory_mapped import MappedTable, map_table
from batchmill.datasets.reading.open_file import (
    Load,
    PackReader,
    choose_load,
    one_of_each_suffix,
    open_by_suffix,
    open_content,
    open_fetched,
)
from batchmill.datasets.reading.published import check_kept, read_published
from batchmill.datasets.reading.sample import sample_type
from batchmill.datasets.reading.selection import (
    LABEL,
    Named,
    Selection,
    check_columns,
    chosen_rows,
    label_column,
    make_samples,
    named,
    partition_column,
)
from batchmill.errors import BatchmillError, OptionError


def open_dataset(
    url: str | os.PathLike[str],
    *,
    partition: str | Sequence[str] | None = None,
    load: Callable[[Path], Any] | str | None = None,
    columns: Sequence[str] = (),
    only_labelled: bool = False,
    transform: Callable[[Any], Any] | None = None,
    version: int | str | None = None,
    stale: bool = True,
    where: str = "",
) -> "SampleDataset":
    """Open the published table of a dataset as a torch Dataset. Each row with a file is a sample.

    If the step wrote no files, the samples are the inputs.

    Args:
        url: The dataset's folder or URL.
        partition: The partition or partitions to read. None: all rows.
        load: The decoder of a file: a function of its path, or the name of a kind ("tensor",
            "array", "arrays", "audio", "image", "text", "json", "bytes"). None: by its suffix.
        columns: Columns of the table that become fields of a sample, after its label. A column
            with further files has their content, opened by suffix, and None without a file.
        only_labelled: True to leave out rows without a label.
        transform: Called with the content of a file. Returns the sample's `data`.
        version: The number or name of a version. None: the last one. A reader keeps its version
            while runs update the dataset.
        stale: False to leave out earlier results of inputs that are not ok.
        where: A condition on columns, for example "label != 'noise'", as `export` takes it.

    Returns:
        The samples.

    Raises:
        OptionError: The URL is not a dataset, has no table yet, or lacks a column, a partition or
            this version.
        LedgerError: The table differs from the table that a run published.
        StoreError: The table cannot be read.
    """
    dataset = absolute(os.fspath(url)).rstrip("/")
    selection = Selection(
        dataset=dataset,
        partitions=None if partition is None else _names(partition),
        columns=_names(columns),
        only_labelled=only_labelled,
        stale=stale,
        where=where,
    )
    published = read_published(dataset, selection.needed, version=version, stale=stale)
    check_columns(published.columns, selection)
    samples, are_inputs = make_samples(published, selection)
    if not len(samples):
        raise OptionError(
            f"{dataset}: has no sample to open. Check the selection, and list its failed inputs: "
            f"batchmill failures {quote(dataset)}"
        )
    places = samples["place"].combine_chunks()
    chosen = choose_load(load, one_of_each_suffix(places), dataset)
    further = [name for name in selection.columns if name in published.added.further]
    for name in further:
        files = samples[name].combine_chunks()
        files = files.filter(pc.not_equal(files, ""))
        choose_load(None, one_of_each_suffix(files), dataset)  # Raises for an unknown suffix.
    root = None
    if are_inputs:
        root = _input_root(dataset, published.spec.root, places[0].as_py())
    content = published.version.table
    table = map_table(samples, partial(_table_again, selection, content))
    return SampleDataset(selection, content, table, root, chosen, transform, further)


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _table_again(selection: Selection, content: str) -> pa.Table:
    published = read_published(selection.dataset, selection.needed, content, stale=selection.stale)
    return make_samples(published, selection)[0]


def _input_root(dataset: str, root: str, name: str) -> str:
    """Return the root of the inputs. Raises OptionError if the first input is missing."""
    first = join(root, name)
    if parse_address(name):
        is_there = next(iter(open_store(root).sizes([name]))) is not None
    else:
        is_there = bool(remote.stat(first)) if is_url(first) else os.path.exists(first)
    if not is_there:
        raise OptionError(
            f"{dataset}: its step wrote no files, so the samples are its inputs, but {first} is "
            "missing. Open it on a machine with the inputs, or use a step that writes files."
        )
    return root


def _open_and_remove(path: Path, full: str, load: Load) -> Any:
    try:
        return open_fetched(path, full, load)
    finally:
        remove_folder(path.parent)


class SampleDataset(Dataset[Any]):
    """The samples of a dataset: `dataset[i]` is a NamedTuple `Sample(id, data, label, ...)`.

    It is a torch Dataset. Its pickle takes about two kilobytes for any number of samples.
    """

    def __init__(
        self,
        selection: Selection,
        content: str,
        table: MappedTable,
        root: str | None,
        load: Load,
        transform: Callable[[Any], Any] | None,
        further: Sequence[str] = (),
    ) -> None:
        self._selection = selection
        self._content = content
        self._table = table
        self._inputs_root = root
        self._root = selection.dataset if root is None else root
        self._load = load
        self._transform = transform
        self._packs = PackReader(self._root)
        # The first column is the file's name. The second is the id, if it differs from the name.
        self._names_ids = table.names[1:2] == ["id"]
        self._fields = ("id", "data", *table.names[2 if self._names_ids else 1 :])
        # The places of further files in a row of the table.
        self._further = [table.names.index(name) for name in further]

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, index: int) -> Any:
        """Open the file of a sample, and return the sample.

        Raises:
            IndexError: There is no sample with this index.
            StoreError: The file is missing or damaged, or the version was removed.
            OptionError: The input may not be read here.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several samples, as torch's DataLoader requests a batch.

        Remote files are fetched at the same time. The errors are those of `dataset[index]`.
        """
        rows = [self._table.row(operator.index(index)) for index in indices]
        files = [file for row in rows for file in self._files(row)]
        is_remote = any(is_url(join(self._root, place)) for place, _ in files)
        if is_remote and get_worker_info():
            obstore_s3.use_obstore()
        with ExitStack() as stack:
            folder = stack.enter_context(scratch_folder()) if is_remote else None
            fetch = partial(self._opener, folder=folder)
            threads = remote.THREADS
            openers = ahead_in_threads(fetch, files, threads) if is_remote else map(fetch, files)
            pairs = zip(indices, rows, strict=True)
            count = 1 + len(self._further)
            return [self._sample(index, row, islice(openers, count)) for index, row in pairs]

    def _files(self, row: Sequence[Any]) -> list[tuple[str, Load]]:
        """Return the places of the files of a row, and the functions that open them."""
        return [(row[0], self._load), *((row[at], open_by_suffix) for at in self._further)]

    def _opener(self, file: tuple[str, Load], folder: Path | None) -> Callable[[], Any]:
        """Return a function that opens a file. Raises the error of the store.

        A file in a pack is read now. Another remote file is fetched now, to a temporary `folder`.
        """
        place, load = file
        if not place:
            return lambda: None  # The row has no such file.
        full = join(self._root, place)
        address = parse_address(place)
        if self._inputs_root is not None:
            check_input(full)
        if address:
            return partial(open_content, self._packs.read(address), full, load)
        if folder is None or not is_url(full):
            return partial(open_fetched, Path(full), full, load)
        path = folder / uuid.uuid4().hex / last_part(full)
        path.parent.mkdir()
        transfer.fetch(full, str(path))
        return partial(_open_and_remove, path, full, load)

    def _sample(self, index: int, row: Sequence[Any], openers: Iterable[Callable[[], Any]]) -> Any:
        """Return a sample. The openers open its files, in the order of `_files`."""
        place, *values = row
        name = values.pop(0) if self._names_ids else place
        try:
            data, *further = (opener() for opener in openers)
            for at, content in zip(self._further, further, strict=True):
                values[at - len(row)] = content
            if self._transform is not None:
                data = self._transform(data)
        except BatchmillError:
            if self._inputs_root is None:  # A version that was removed explains a missing file.
                check_kept(self._selection.dataset, self._content)
            raise
        except Exception as error:
            full = join(self._root, place)
            error.add_note(f"This was raised for sample {index} of {self!r}: {full}")
            raise
        return sample_type(self._fields)(name, data, *values)

    def __iter__(self) -> Iterator[Any]:
        """Yield all samples in order. Raises the errors of `dataset[index]`."""
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        chosen = self._selection.partitions
        partitions = "" if chosen is None else f", partition={'+'.join(chosen)}"
        return f"SampleDataset({self._selection.dataset}{partitions}, {len(self)} samples)"

    @property
    def classes(self) -> list[str]:
        """The sorted labels of the whole dataset. A sample's `label` is an index of this list.

        Empty if labels are numbers, or without labels.
        """
        return self._table.dictionary(LABEL)

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The index of each text label in `classes`."""
        return {name: number for number, name in enumerate(self.classes)}

    @property
    def partition(self) -> dict[str, list[str]]:
        """The ids of each partition of the whole dataset. Reads the table. Raises OptionError."""
        files = self._read({PARTITION_COLUMN})
        column = partition_column(files.rows, self._selection.dataset)
        return {
            name: files.ids.filter(pc.fill_null(pc.equal(column, name), False)).to_pylist()
            for name in sorted(pc.unique(column).drop_null().to_pylist())
        }

    @property
    def labels(self) -> dict[str, Any]:
        """The original label of each id in the whole dataset. Reads the table.

        Ids without a label are left out. Raises OptionError if the dataset has no labels.
        """
        files = self._read({LABEL})
        labels = label_column(tensors_as_lists(files.rows), self._selection.dataset).to_pylist()
        pairs = zip(files.ids.to_pylist(), labels, strict=True)
        return {name: label for name, label in pairs if label is not None and label != ""}

    @property
    def frame(self) -> pd.DataFrame:
        """The published rows of these samples in their order, indexed by id. Reads the table."""
        files = self._read(None)
        files = files.only(chosen_rows(files.rows, self._selection))
        frame = exact_frame(files.rows)
        return frame.set_index(pd.Index(files.ids.to_pandas(), name="id"))

    def _read(self, columns: set[str] | None) -> Named:
        """Read columns of all samples. Raises OptionError if the table changed meanwhile."""
        dataset = self._selection.dataset
        wanted = None if columns is None else {"input", "output", *columns}
        stale = self._selection.stale
        return named(read_published(dataset, wanted, self._content, stale=stale).table, dataset)
