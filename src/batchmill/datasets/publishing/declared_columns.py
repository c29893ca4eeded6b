"""Columns whose type the step declares: numbers, text, and lists of these as Arrow arrays."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_LIST = "list:"


def declared_array(
    values: Sequence[Any], kind: str, other: Callable[[Sequence[Any]], pa.Array]
) -> pa.Array:
    """Return values as an array of a declared type.

    Args:
        values: Plain values, as JSON has them.
        kind: The type, as in `DeclaredRows.columns`.
        other: Makes the array if a value does not fit, such as a number with more than 64 bits.

    Returns:
        The array. A list has the type `list`, at any number of levels.
    """
    try:
        if not kind.startswith(_LIST):
            return pa.array(values, pa.type_for_alias(kind))
        levels, is_known = _levels(values)
        leaf = pa.type_for_alias(kind.removeprefix(_LIST)) if is_known else pa.null()
        return pa.array(values, _nested(leaf, levels))
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return other(values)


def _levels(values: Sequence[Any]) -> tuple[int, bool]:
    """Return the number of levels of lists, and whether it is known: not if all end empty."""
    levels = 1
    while lists := [value for value in values if isinstance(value, list) and value]:
        if not isinstance(lists[0][0], list):
            return levels, True
        values = [item for value in lists for item in value]
        levels += 1
    return levels, False


def _nested(leaf: pa.DataType, levels: int) -> pa.DataType:
    for _ in range(levels):
        leaf = pa.list_(leaf)
    return leaf


def is_open(kind: pa.DataType) -> bool:
    """Return whether a type is that of lists which all end empty. It fits further levels."""
    while pa.types.is_list(kind):
        kind = kind.value_type
    return bool(pa.types.is_null(kind))


def as_declared(column: pa.ChunkedArray, kind: str) -> pa.ChunkedArray:
    """Return a column of lists as vectors or tensors of one shape, if all rows have that shape.

    A column of vectors has the type `fixed_size_list`, a column of tensors the extension type
    `fixed_shape_tensor`. A column whose lists all end empty gets the declared type. Other columns
    are returned unchanged.
    """
    if pa.types.is_list(column.type) and is_open(column.type):
        levels, now = 0, column.type
        while pa.types.is_list(now):
            levels, now = levels + 1, now.value_type
        return column.cast(_nested(pa.type_for_alias(kind.removeprefix(_LIST)), levels))
    shapes = {shape for chunk in column.chunks if len(chunk) for shape in [_shape(chunk)]}
    if len(shapes) != 1 or not all(shapes):
        return column
    (shape,) = shapes
    vectors = [_as_vectors(chunk, shape) for chunk in column.chunks if len(chunk)]
    return pa.chunked_array(vectors)


def _shape(lists: pa.Array) -> tuple[int, ...]:
    """Return the shape that all lists of numbers have. Empty if they differ, or one is missing."""
    shape: list[int] = []
    while pa.types.is_list(lists.type):
        ends = pc.min_max(pc.list_value_length(lists)).as_py()
        if lists.null_count or ends["min"] != ends["max"] or not ends["min"]:
            return ()
        shape.append(ends["min"])
        lists = lists.flatten()
    is_number = pa.types.is_integer(lists.type) or pa.types.is_floating(lists.type)
    return tuple(shape) if is_number and not lists.null_count else ()


def _as_vectors(lists: pa.Array, shape: Sequence[int]) -> pa.Array:
    values = lists
    for _ in shape:
        values = values.flatten()
    vectors = pa.FixedSizeListArray.from_arrays(values, math.prod(shape))
    if len(shape) == 1:
        return vectors
    kind = pa.fixed_shape_tensor(values.type, shape)
    return pa.ExtensionArray.from_storage(kind, vectors)
