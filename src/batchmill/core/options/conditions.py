"""Conditions on the columns of a table, such as "label != 'noise' and seconds > 2".

A condition may come from a form, so it cannot run other code: it may call only a few methods.
"""

import ast
import math
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.errors import OptionError

if TYPE_CHECKING:
    import pandas as pd

_MOST_EXACT = 2**53  # A float holds all whole numbers up to this one.
_SCHEMA = re.compile(r"[\w.]+:[\w.]+")
# A text in quotes, or the name of a column in backticks.
_QUOTED = re.compile(r"""('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")|`([^`]+)`""")
_EQUALITY_SIGNS = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)
_FOR_MISSING = frozenset(["isna", "notna", "isnull", "notnull", "fillna"])
_METHODS = _FOR_MISSING | {
    *("isin", "between", "duplicated", "abs", "round"),
    *("min", "max", "sum", "mean", "median", "std", "quantile", "nunique"),
    *("len", "contains", "startswith", "endswith", "fullmatch", "lower", "upper", "strip"),
}


class Condition:
    """A condition on columns, in the syntax of pandas.DataFrame.query.

    Args:
        text: The condition. A column whose name is not a word is in backticks.

    Attributes:
        names: The columns in the condition. Functions such as abs are not among them.
        handled: Those whose missing values the condition handles, for example with isna().

    Raises:
        ValueError, SyntaxError: The text is not a condition.
    """

    def __init__(self, text: str) -> None:
        prefix = "column"
        while prefix in text:
            prefix += "_"
        columns: dict[str, str] = {}

        def word(match: re.Match[str]) -> str:
            return match[1] or columns.setdefault(match[2], f"{prefix}{len(columns)}")

        # pandas reads each line as a condition of its own.
        self._text = _QUOTED.sub(word, " ".join(text.strip().splitlines()))
        self._words = columns
        nodes = [*ast.walk(ast.parse(self._text, mode="eval"))]
        attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
        if any(node.attr.startswith("_") for node in attributes):
            raise ValueError("a name after a dot begins with _")
        called = [node.func for node in nodes if isinstance(node, ast.Call)]
        for function in called:
            name = function.attr if isinstance(function, ast.Attribute) else ""
            if not isinstance(function, ast.Name) and name not in _METHODS:
                allowed = ", ".join(sorted(_METHODS))
                raise ValueError(f"{name}() cannot be called, only {allowed}")
        real = {identifier: name for name, identifier in columns.items()}

        def columns_in(parts: Iterable[ast.AST]) -> set[str]:
            named = [part for part in parts if isinstance(part, ast.Name)]
            # Python normalizes identifiers: the sign of micro becomes the Greek letter.
            written = [ast.get_source_segment(self._text, node) or node.id for node in named]
            return {real.get(segment, segment) for segment in written}

        self.names = columns_in(node for node in nodes if node not in called)
        self.handled = columns_in(node.value for node in attributes if node.attr in _FOR_MISSING)
        self._compared_with_text = columns_in(chain.from_iterable(map(_compared_with_text, nodes)))
        # In an expression, pandas calculates with floats, but not with Python's whole numbers.
        calculations = filter(_is_calculation, nodes)
        self._calculated = columns_in(chain.from_iterable(map(ast.walk, calculations)))

    def columns_of(self, table: pa.Table) -> "pd.DataFrame":
        """Return the columns that the condition names, for `evaluate`.

        Dates are text such as 2024-01-31, and times of a day such as 08:30:00, because in pandas
        no date is equal to a text. Decimals with places are floats. Whole numbers that a float
        would change stay whole in a column with missing values, unless the condition calculates.
        """
        chosen = table.select([name for name in table.column_names if name in self.names])
        for number, field in enumerate(chosen.schema):
            values = chosen.column(number)
            if pa.types.is_date(field.type):
                values = values.cast(pa.string())
            elif pa.types.is_time(field.type):
                texts = [None if time is None else str(time) for time in values.to_pylist()]
                values = pa.chunked_array([pa.array(texts, pa.string())])
            elif pa.types.is_decimal(field.type) and field.type.scale > 0:
                values = values.cast(pa.float64())  # No float is equal to the decimal 0.1.
            chosen = chosen.set_column(number, field.name, values)
        return exact_frame(chosen, self._calculated)

    def evaluate(self, frame: "pd.DataFrame") -> "pd.Series":
        """Return whether each row of a table meets the condition.

        Args:
            frame: The result of `columns_of`.

        Raises:
            Exception: The condition does not fit the table.
        """
        import pandas as pd  # Most runs have no condition.

        for name in sorted(self._compared_with_text & set(frame.columns)):
            if frame[name].dtype.kind in "mM":
                raise TypeError(
                    f"{name} has times, and pandas finds no time equal to a text. Use >= and <"
                )

        frame = frame.rename(
            columns=lambda name: self._words.get(name) or unicodedata.normalize("NFKC", name)
        )
        # Without a scope, the text cannot use the variables of this program.
        try:
            mask = frame.eval(self._text, engine="python", local_dict={}, global_dict={})
        except TypeError as error:
            if "M" not in {kind.kind for kind in frame.dtypes}:
                raise
            raise TypeError(
                f"{error}. Write a zone, as in '2024-01-31T08:00Z', only if the column has one"
            ) from error
        if not isinstance(mask, pd.Series) or mask.dtype.kind != "b":
            raise TypeError("the result is not true or false for each row")
        return mask.astype(bool)


def _compared_with_text(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what a node tests for equality with a text. pandas uses isin() for all such tests.

    Only whole operands count: in `a >= "x" & b == "y"`, Python reads `"x" & b` as one operand, but
    pandas compares b with "y".
    """
    match node:
        case ast.Compare(left, signs, others):
            compared = zip(signs, pairwise([left, *others]), strict=True)
            pairs = [pair for sign, pair in compared if isinstance(sign, _EQUALITY_SIGNS)]
        case ast.Call(ast.Attribute(value, "isin"), arguments):
            pairs = [(value, argument) for argument in arguments]
        case _:
            return
    for operand, other in [*pairs, *((other, operand) for operand, other in pairs)]:
        if _is_text(other):
            yield operand


def _is_text(node: ast.AST) -> bool:
    parts = node.elts if isinstance(node, ast.List | ast.Tuple | ast.Set) else [node]
    return any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in parts)


def _is_calculation(node: ast.AST) -> bool:
    """Return whether a node is arithmetic, or calls a function such as sqrt."""
    if isinstance(node, ast.BinOp):
        return not isinstance(node.op, ast.BitAnd | ast.BitOr)
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def exact_frame(table: pa.Table, floats: Collection[str] = ()) -> "pd.DataFrame":
    """Return a table as a DataFrame without rounding whole numbers next to missing values.

    Args:
        table: The table.
        floats: The columns whose numbers may be rounded to floats.
    """
    import pandas as pd

    frame: pd.DataFrame = table.to_pandas()
    for name in table.column_names:
        if name not in floats and _would_change(table[name]):
            values = [math.nan if value is None else value for value in table[name].to_pylist()]
            frame[name] = pd.Series(values, dtype=object)
    return frame


def _would_change(column: pa.ChunkedArray) -> bool:
    """Return whether pandas would round numbers of a column, because some are missing."""
    if not (pa.types.is_integer(column.type) and 0 < column.null_count < len(column)):
        return False
    least, most = pc.min_max(column).as_py().values()
    return bool(max(most, -least) > _MOST_EXACT)


def names_schema(expectation: str) -> bool:
    """Return whether an expectation has the form module:SCHEMA, and so is no condition."""
    return _SCHEMA.fullmatch(expectation.strip()) is not None


def check_expectation(text: str) -> None:
    """Raise OptionError for a text that is neither a condition nor module:SCHEMA."""
    if not names_schema(text):
        parse_condition(text, "--expect", " Or name a Pandera schema: module:SCHEMA.")


def parse_condition(text: str, option: str, hint: str = "") -> Condition:
    """Return a condition. Raise OptionError with a hint if the text is not a condition."""
    try:
        return Condition(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        reason = getattr(error, "msg", error)  # Without the place in a file.
        raise OptionError(
            f"{option} {text!r}: is not a condition ({reason}). Write a condition on columns such "
            f'as "peak <= 1.0".{hint}'
        ) from error


def rows_that_meet(table: pa.Table, text: str, *, option: str, dataset: str) -> pa.Array:
    """Return the mask of the rows that meet a condition.

    Args:
        table: The table.
        text: The condition.
        option: The name of the option, for messages.
        dataset: The dataset, for messages.

    Raises:
        OptionError: The text is not a condition, or does not fit the columns.
    """
    try:
        condition = Condition(text)
        return pa.array(condition.evaluate(condition.columns_of(table)))
    except Exception as error:
        raise OptionError(
            f"{option} {text!r}: cannot be used ({type(error).__name__}: {error}). Write a "
            "condition such as \"label != 'noise' and seconds > 2\". "
            f"{dataset} has the columns {', '.join(table.column_names)}."
        ) from error
