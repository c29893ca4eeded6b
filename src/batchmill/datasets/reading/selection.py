"""Select the samples and their fields from the published table."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.layout import FILES, INPUT_COLUMN, OUTPUT_COLUMN, PACKS, PARTITION_COLUMN
from batchmill.core.options.conditions import parse_condition, rows_that_meet
from batchmill.core.planning.run_spec import input_places
from batchmill.core.storage.name_search import repeated
from batchmill.datasets.reading.published import Published
from batchmill.datasets.reading.sample import check_fields
from batchmill.errors import OptionError

LABEL = "label"
_TEXT = pa.large_string()  # 64-bit offsets: ten million paths have more than 2**31 bytes.
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The rows and columns to read from a dataset, enough to open it again.

    Attributes:
        dataset: Its folder or URL.
        partitions: The partitions to read. None: all rows.
        columns: The columns that become fields of a sample.
        only_labelled: True to leave out rows without a label.
        stale: False to leave out earlier results of inputs that are not ok.
        where: A condition on columns. Empty: all rows.
    """

    dataset: str
    partitions: tuple[str, ...] | None = None
    columns: tuple[str, ...] = ()
    only_labelled: bool = False
    stale: bool = True
    where: str = ""

    @property
    def where_columns(self) -> frozenset[str]:
        """The columns of the condition. Raises OptionError for a text that is no condition."""
        text = self.where.strip()
        return frozenset(parse_condition(text, "where").names if text else ())

    @property
    def needed(self) -> frozenset[str]:
        """The columns that are read from the table."""
        needed = {INPUT_COLUMN, OUTPUT_COLUMN, LABEL, *self.columns, *self.where_columns}
        return frozenset(needed | ({PARTITION_COLUMN} if self.partitions is not None else set()))


class Named(NamedTuple):
    """The rows that have a file, with the file's name and the id of each row."""

    rows: pa.Table
    places: pa.Array
    ids: pa.Array
    are_inputs: bool

    def only(self, mask: pa.Array | None) -> "Named":
        """Return the rows that a mask selects; all rows without a mask."""
        if mask is None:
            return self
        rows, places, ids = (part.filter(mask) for part in (self.rows, self.places, self.ids))
        return Named(rows, places, ids, self.are_inputs)


def named(table: pa.Table, dataset: str, pack: str = "") -> Named:
    """Return the rows that have an output. In a dataset without outputs, the files are the inputs.

    The id is the file's name in the table. If several rows name one file, their ids are NAME#0,
    NAME#1 and so on.

    Args:
        table: The published table.
        dataset: The dataset's path or URL.
        pack: The column with the addresses of outputs in packs. Empty: the files are not needed.
    """
    if OUTPUT_COLUMN in table.column_names:
        outputs = table[OUTPUT_COLUMN].cast(_TEXT).combine_chunks()
        there = pc.fill_null(pc.not_equal(outputs, ""), False)
        if pc.any(there).as_py():
            table, outputs = table.filter(there), outputs.filter(there)
            _check_inside(outputs, dataset, FILES)
            places = _places(table, outputs, pack, dataset)
            return Named(table, places, _unique(outputs), are_inputs=False)
    names = table[INPUT_COLUMN].cast(_TEXT).combine_chunks()
    return Named(table, names, _unique(names), are_inputs=True)


def make_samples(published: Published, selection: Selection) -> tuple[pa.Table, bool]:
    """Return the table of samples, and whether their files are the inputs.

    The columns are `place`, `id` (if it differs), `label`, then the other columns.

    Text labels become indices of a dictionary with all labels of the dataset, sorted. A column with
    further files has their places.

    Raises:
        OptionError: The dataset lacks a column, a partition or a label.
    """
    dataset, added = selection.dataset, published.added
    files = named(published.table, dataset, added.pack)
    if files.are_inputs and len(files.places):
        files = files._replace(places=input_places(published.spec, files.places))
    labels = _labels(files.rows) if LABEL not in selection.columns else None
    fields = ["id", "data", *([LABEL] if labels is not None else [])]
    check_fields(dataset, selection.columns, fields)
    made = {"place": files.places}
    if files.ids is not files.places:
        made["id"] = files.ids
    if labels is not None:
        made[LABEL] = labels
    # A list of names, because a user's column may also be called "place".
    names = [*made, *selection.columns]
    columns = (
        further_places(files.rows, name, added.packs[name], dataset)
        if name in added.further
        else _values(files.rows[name])
        for name in selection.columns
    )
    samples = pa.table([*made.values(), *columns], names)
    mask = chosen_rows(files.rows, selection)
    if mask is not None:
        samples, files = samples.filter(mask), files._replace(ids=files.ids.filter(mask))
    if labels is not None:
        _check_labels(samples[LABEL], files.ids, dataset)
    return samples, files.are_inputs


def chosen_rows(rows: pa.Table, selection: Selection, *, option: str = "where") -> pa.Array | None:
    """Return a mask of the selected rows; None if all rows are selected.

    Raises:
        OptionError: There is no such partition or column. `option` is the name of the condition in
            the message.
    """
    masks = []
    if selection.partitions is not None:
        masks.append(partition_mask(rows, selection.partitions, selection.dataset))
    if selection.only_labelled:
        label_column(rows, selection.dataset)  # Raises OptionError without this column.
        masks.append(pc.is_valid(_labels(rows)))
    if selection.where.strip():
        where, dataset = selection.where, selection.dataset
        masks.append(rows_that_meet(rows, where, option=option, dataset=dataset))
    return reduce(pc.and_, masks) if masks else None


def partition_mask(rows: pa.Table, partitions: Sequence[str], dataset: str) -> pa.Array:
    """Return a mask of the rows in some partitions. Raises OptionError for an empty partition."""
    column = partition_column(rows, dataset)
    known = sorted(pc.unique(column).drop_null().to_pylist())
    unknown = [name for name in partitions if name not in known]
    if unknown or not partitions:
        wanted = " and ".join(map(repr, unknown)) or "is given"
        raise OptionError(
            f"{dataset}: no partition {wanted}. It has {', '.join(map(repr, known)) or 'none'}. "
            "Choose from these."
        )
    return pc.is_in(column, pa.array(partitions, _TEXT))


def partition_column(rows: pa.Table, dataset: str) -> pa.Array:
    """Return each row's partition, null for a row without one."""
    if PARTITION_COLUMN not in rows.column_names:
        raise OptionError(
            f"{dataset}: has no column {PARTITION_COLUMN!r}. Add it to the manifest (train, "
            "validation, test), then run again. Only steps that take the row execute their inputs "
            "again."
        )
    column = rows[PARTITION_COLUMN].cast(_TEXT).combine_chunks()
    return pc.if_else(pc.equal(column, ""), None, column)


def label_column(rows: pa.Table, dataset: str) -> pa.ChunkedArray:
    """Return each row's original label. Raises OptionError without a column of labels."""
    if LABEL not in rows.column_names:
        raise OptionError(
            f"{dataset}: has no column {LABEL!r}. Add it to the manifest, then run again. Only "
            "steps that take labels or the row execute their inputs again."
        )
    return rows[LABEL]


def check_columns(known: Sequence[str], selection: Selection) -> None:
    """Raise OptionError for columns that the dataset does not have."""
    wanted = [*selection.columns, *sorted(selection.where_columns)]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise OptionError(
            f"{selection.dataset}: has no column {' and '.join(map(repr, unknown))}. "
            f"It has {', '.join(map(repr, known))}."
        )


def further_places(rows: pa.Table, column: str, pack: str, dataset: str) -> pa.Array:
    """Return the places of further files: names, or addresses in packs. Empty without a file.

    Args:
        rows: The published rows.
        column: The column with the names.
        pack: The column with the addresses. Empty without packs.
        dataset: The dataset's path or URL.

    Raises:
        OptionError: A file is outside of the dataset.
    """
    names = rows[column].cast(_TEXT).combine_chunks()
    # A row whose step wrote no such file may have the value of the manifest, which names a file of
    # another dataset. The files of a row are in the folder of its output.
    folders = [
        pc.replace_substring_regex(texts, "^([^/]*/[^/]*/).*", r"\1")
        for texts in (names, rows[OUTPUT_COLUMN].cast(_TEXT).combine_chunks())
    ]
    is_file = pc.and_(pc.starts_with(names, f"{FILES}/"), pc.equal(*folders)).fill_null(False)
    names = pc.if_else(is_file, names, "")
    _check_inside(names.filter(is_file), dataset, FILES)
    return _places(rows, names, pack, dataset)


def _places(rows: pa.Table, names: pa.Array, pack: str, dataset: str) -> pa.Array:
    """Return the address of each file that is in a pack, and the names of other files."""
    if not pack:
        return names
    addresses = rows[pack].cast(_TEXT).combine_chunks()
    _check_inside(addresses.drop_null(), dataset, PACKS)
    return pc.coalesce(addresses, names)


def _check_inside(outputs: pa.Array, dataset: str, folder: str) -> None:
    """Raise OptionError for files outside of the dataset, because the table may be untrusted."""
    inside = pc.starts_with(outputs, f"{folder}/")
    inside = pc.and_not(inside, pc.match_substring_regex(outputs, r"(^|/)\.\.(/|$)"))
    if not pc.all(inside).as_py():
        first = outputs.filter(pc.invert(inside))[0].as_py()
        raise OptionError(
            f"{dataset}: its table names {first!r}, which is not below {FILES}/. "
            "A run never writes such a name. Check the dataset with batchmill verify."
        )


def _unique(places: pa.Array) -> pa.Array:
    """Return the places as unique ids: equal places get a number."""
    rows, groups = repeated(places)
    if not len(rows):
        return places
    numbers = np.zeros(len(places), np.int64)
    numbers[rows] = pd.Series(groups).groupby(groups).cumcount()
    texts = pa.array(numbers).cast(_TEXT)
    numbered = pc.binary_join_element_wise(places, texts, pa.scalar("#", _TEXT))
    is_repeated = np.zeros(len(places), bool)
    is_repeated[rows] = True
    ids = pc.if_else(is_repeated, numbered, places)
    # Another file may have such a name. If all ids have numbers, no two can be equal.
    return numbered if len(repeated(ids)[0]) else ids


def _labels(rows: pa.Table) -> pa.Array | None:
    """Return the labels of samples, null for a missing label; None without a column."""
    if LABEL not in rows.column_names:
        return None
    values = rows[LABEL].combine_chunks()
    kind = values.type
    if pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        return values.cast(pa.int64() if pa.types.is_boolean(kind) else pa.float64())
    if pa.types.is_floating(kind):
        return pc.if_else(pc.is_nan(values), None, values)
    if pa.types.is_integer(kind) or _has_arrays(kind):
        return values
    texts = _texts(rows[LABEL])
    classes = pc.unique(texts.filter(pc.fill_null(pc.not_equal(texts, ""), False)))
    classes = classes.take(pc.sort_indices(classes))
    return pa.DictionaryArray.from_arrays(pc.index_in(texts, classes), classes)


def _check_labels(labels: pa.ChunkedArray, ids: pa.Array, dataset: str) -> None:
    if not labels.null_count:
        return
    first = ids.filter(pc.is_null(labels).combine_chunks())[:_SHOWN].to_pylist()
    raise OptionError(
        f"{dataset}: {labels.null_count} of {len(labels)} samples have no label "
        f"({', '.join(first)}{', ...' if labels.null_count > _SHOWN else ''}). Leave "
        "them out with only_labelled=True, fill in the manifest's column 'label' and run again, or "
        "read the original labels with columns=['label']."
    )


def _values(column: pa.ChunkedArray) -> pa.Array:
    """Return a column without missing values, so that any batch can be collated.

    Missing text becomes empty, and a missing number becomes NaN. Vectors and tensors stay as they
    are. Other values become text.
    """
    kind = column.type
    if _has_arrays(kind):
        return column.combine_chunks()
    if pa.types.is_decimal(kind):
        column, kind = column.cast(pa.float64()), pa.float64()
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        if column.null_count:
            column = pc.fill_null(column.cast(pa.float64(), safe=False), float("nan"))
        return column.combine_chunks()
    return pc.fill_null(_texts(column), "")


def _has_arrays(kind: pa.DataType) -> bool:
    return pa.types.is_fixed_size_list(kind) or isinstance(kind, pa.FixedShapeTensorType)


def _texts(column: pa.ChunkedArray) -> pa.Array:
    """Return the values as text, null for a missing value. A list becomes JSON."""
    if not pa.types.is_nested(column.type):
        return column.cast(_TEXT).combine_chunks()
    values = column.to_pylist()
    return pa.array([None if value is None else json.dumps(value) for value in values], _TEXT)
