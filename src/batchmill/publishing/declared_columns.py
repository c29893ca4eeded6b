"""Columns whose type the step declares: numbers, text, and lists of these as Arrow arrays."""

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
    name, levels = kind, 0
    if kind.startswith(_LIST):
        name = kind.removeprefix(_LIST)
        levels = _levels(values)
    try:
        arrow = pa.type_for_alias(name)
        for _ in range(levels):
            arrow = pa.list_(arrow)
        return pa.array(values, arrow)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return other(values)


def _levels(values: Sequence[Any]) -> int:
    """Return the number of levels of the first list that is not empty."""
    levels = 1
    value: Any = next((value for value in values if value), [])
    while isinstance(value, list) and value and isinstance(value[0], list):
        value, levels = value[0], levels + 1
    return levels


def as_vectors(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of lists as vectors or tensors of one shape, if all rows have that shape.

    A column of vectors has the type `fixed_size_list`, a column of tensors the extension type
    `fixed_shape_tensor`. Other columns are returned unchanged.
    """
    if not pa.types.is_list(column.type) or column.null_count or not len(column):
        return column
    values, shape = column.combine_chunks(), []
    while pa.types.is_list(values.type):
        ends = pc.min_max(pc.list_value_length(values)).as_py()
        if ends["min"] != ends["max"] or not ends["min"] or values.null_count:
            return column
        shape.append(ends["min"])
        values = values.flatten()
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        return column
    size = len(values) // len(column)
    vectors = pa.FixedSizeListArray.from_arrays(values, size)
    if len(shape) > 1:
        kind = pa.fixed_shape_tensor(values.type, shape)
        vectors = pa.ExtensionArray.from_storage(kind, vectors)
    return pa.chunked_array([vectors])
