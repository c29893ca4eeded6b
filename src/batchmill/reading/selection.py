"""Decides, from the published table alone, which rows are samples and what each consists of."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from batchmill.errors import OptionError
from batchmill.reading.sample import check_fields
from batchmill.storage import FILES

LABEL, PARTITION = "label", "partition"
_INPUT, _OUTPUT = "input", "output"
_TEXT = pa.large_string()  # Of 64 bits: a column of ten million paths has more bytes than 2**31.
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What is opened of a dataset; enough to open it again. None: all partitions."""

    dataset: str
    partitions: tuple[str, ...] | None = None
    columns: tuple[str, ...] = ()
    only_labelled: bool = False

    @property
    def needed(self) -> frozenset[str]:
        """The columns that samples are made of."""
        needed = {_INPUT, _OUTPUT, LABEL, *self.columns}
        return frozenset(needed | ({PARTITION} if self.partitions is not None else set()))


class Named(NamedTuple):
    """The rows of a dataset that have a file, the name of each one's file, and its id."""

    rows: pa.Table
    places: pa.Array
    ids: pa.Array
    are_inputs: bool


def named(table: pa.Table, dataset: str) -> Named:
    """Return the rows that have a file: an output, or in a dataset without any, the input.

    The id is the file's name, as the table has it. Several rows of one file are NAME#0, NAME#1, ...
    """
    are_inputs = True
    if _OUTPUT in table.column_names:
        outputs = _one_array(table[_OUTPUT].cast(_TEXT))
        there = pc.fill_null(pc.not_equal(outputs, ""), False)
        if pc.any(there).as_py():
            are_inputs = False
            table, outputs = table.filter(there), outputs.filter(there)
            _check_inside(outputs, dataset)
    places = _one_array(table[_INPUT].cast(_TEXT)) if are_inputs else outputs
    return Named(table, places, _unique(places), are_inputs)


class Samples(NamedTuple):
    """The table of samples, and whether they are of inputs."""

    table: pa.Table
    are_inputs: bool


def make_samples(table: pa.Table, selection: Selection) -> Samples:
    """Make the table of samples: `place`, `id` (if it is another), `label`, then the columns.

    Labels of text become a dictionary's indices; the dictionary has all labels of the dataset,
    sorted. Raises OptionError for what the dataset does not have.
    """
    dataset = selection.dataset
    found = named(table, dataset)
    labels = _labels(found.rows) if LABEL not in selection.columns else None
    own = ["id", "data", *([LABEL] if labels is not None else [])]
    check_fields(dataset, selection.columns, own)
    made = {"place": found.places}
    if found.ids is not found.places:
        made["id"] = found.ids
    if labels is not None:
        made[LABEL] = labels
    # Among these names there may be a user's "place".
    names = [*made, *selection.columns]
    samples = pa.table([*made.values(), *map(_values, found.rows.select(selection.columns))], names)
    mask = chosen_rows(found.rows, selection)
    if mask is not None:
        samples, found = samples.filter(mask), found._replace(ids=found.ids.filter(mask))
    if labels is not None:
        _check_labels(samples[LABEL], found.ids, dataset)
    return Samples(samples, found.are_inputs)


def chosen_rows(rows: pa.Table, selection: Selection) -> pa.Array | None:
    """Return which rows a selection takes; None if all. Raises OptionError."""
    masks = []
    if selection.partitions is not None:
        masks.append(partition_mask(rows, selection.partitions, selection.dataset))
    if selection.only_labelled:
        label_column(rows, selection.dataset)  # Or it says that there is none.
        masks.append(pc.is_valid(_labels(rows)))
    return reduce(pc.and_, masks) if masks else None


def partition_mask(rows: pa.Table, partitions: Sequence[str], dataset: str) -> pa.Array:
    """Return which rows are in some partitions. Raises OptionError for one that no row is in."""
    column = partition_column(rows, dataset)
    known = sorted(pc.unique(column).drop_null().to_pylist())
    unknown = [name for name in partitions if name not in known]
    if unknown or not partitions:
        wanted = " and ".join(map(repr, unknown)) or "none"
        raise OptionError(
            f"{dataset}: partition {wanted} was asked for; there is "
            f"{', '.join(map(repr, known)) or 'none'}. Choose from these."
        )
    return pc.is_in(column, pa.array(partitions, _TEXT))


def partition_column(rows: pa.Table, dataset: str) -> pa.Array:
    """Return each row's partition, null for a row that is in none."""
    if PARTITION not in rows.column_names:
        raise OptionError(
            f"{dataset}: has no column {PARTITION!r}. Give the manifest one (train, validation, "
            "test, ...), and run again: that executes nothing again, unless the step takes the row."
        )
    column = _one_array(rows[PARTITION].cast(_TEXT))
    return pc.if_else(pc.equal(column, ""), None, column)


def label_column(rows: pa.Table, dataset: str) -> pa.ChunkedArray:
    """Return each row's label as it is written."""
    if LABEL not in rows.column_names:
        raise OptionError(
            f"{dataset}: has no column {LABEL!r}. Give the manifest one, and run again: that "
            "executes nothing again, unless the step takes labels or the row."
        )
    return rows[LABEL]


def check_columns(known: Sequence[str], selection: Selection) -> None:
    """Raise OptionError for columns that the dataset does not have."""
    unknown = [name for name in selection.columns if name not in known]
    if unknown:
        raise OptionError(
            f"{selection.dataset}: has no column {' and '.join(map(repr, unknown))}. "
            f"It has {', '.join(map(repr, known))}."
        )


def _check_inside(outputs: pa.Array, dataset: str) -> None:
    """Raise OptionError for files outside of the dataset: a table may come from anybody."""
    inside = pc.starts_with(outputs, f"{FILES}/")
    inside = pc.and_not(inside, pc.match_substring_regex(outputs, r"(^|/)\.\.(/|$)"))
    if not pc.all(inside).as_py():
        first = outputs.filter(pc.invert(inside))[0].as_py()
        raise OptionError(
            f"{dataset}: its table names {first!r}, which is not below {FILES}/. "
            "No run has written that; run batchmill verify."
        )


def _unique(places: pa.Array) -> pa.Array:
    """Return the places themselves if no two are equal; else those that are, with numbers."""
    if pc.count_distinct(places).as_py() == len(places):
        return places
    codes = pd.Series(places.dictionary_encode().indices.to_numpy())
    numbers = pa.array(codes.groupby(codes).cumcount().to_numpy()).cast(_TEXT)
    numbered = pc.binary_join_element_wise(places, numbers, pa.scalar("#", _TEXT))
    repeated = pa.array(np.bincount(codes)[codes] > 1)
    ids = pc.if_else(repeated, numbered, places)
    # Some other file may be called so; if all have numbers, none can.
    return ids if pc.count_distinct(ids).as_py() == len(ids) else numbered


def _labels(rows: pa.Table) -> pa.Array | None:
    """Return the labels as samples have them, null where there is none; None without a column."""
    if LABEL not in rows.column_names:
        return None
    values = _one_array(rows[LABEL])
    kind = values.type
    if pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        return values.cast(pa.int64() if pa.types.is_boolean(kind) else pa.float64())
    if pa.types.is_floating(kind):
        return pc.if_else(pc.is_nan(values), None, values)
    if pa.types.is_integer(kind):
        return values
    texts = values.cast(_TEXT)
    classes = pc.unique(texts.filter(pc.fill_null(pc.not_equal(texts, ""), False)))
    classes = classes.take(pc.sort_indices(classes))
    return pa.DictionaryArray.from_arrays(pc.index_in(texts, classes), classes)


def _check_labels(labels: pa.ChunkedArray, ids: pa.Array, dataset: str) -> None:
    if not labels.null_count:
        return
    first = ids.filter(_one_array(pc.is_null(labels)))[:_SHOWN].to_pylist()
    raise OptionError(
        f"{dataset}: {labels.null_count} of {len(labels)} samples have no label "
        f"({', '.join(first)}{', ...' if labels.null_count > _SHOWN else ''}). Leave "
        "them out: only_labelled=True; fill in the manifest's column 'label' and run again; or "
        "take labels as they are written: columns=['label']."
    )


def _values(column: pa.ChunkedArray) -> pa.Array:
    """Return a column's values as any batch of them can be collated: no value is missing.

    Missing text is empty, a missing number NaN. What is neither number nor text becomes text.
    """
    kind = column.type
    if pa.types.is_decimal(kind):
        column, kind = column.cast(pa.float64()), pa.float64()
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        if column.null_count:
            column = pc.fill_null(column.cast(pa.float64(), safe=False), float("nan"))
        return _one_array(column)
    return _one_array(pc.fill_null(column.cast(_TEXT), ""))


def _one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
