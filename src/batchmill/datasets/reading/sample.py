"""Define samples: NamedTuples with fields for the columns of the dataset."""

import keyword
import unicodedata
from collections import namedtuple
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from batchmill.errors import OptionError


@cache
def sample_type(fields: tuple[str, ...]) -> Callable[..., tuple[Any, ...]]:
    """Return the NamedTuple `Sample` with these fields. The same fields give the same class."""
    # Python normalizes sample.µV, so the names of fields must be normalized, too.
    names = [unicodedata.normalize("NFKC", name) for name in fields]
    kind = namedtuple("Sample", names, module=__name__)  # type: ignore[misc]
    # No module has this class as an attribute, so pickle needs a function that creates it again.
    kind.__reduce__ = _reduce  # type: ignore[method-assign, assignment]
    return kind


def _reduce(sample: Any) -> tuple[Any, ...]:
    return _sample, (sample._fields, *sample)


def _sample(fields: tuple[str, ...], *values: Any) -> tuple[Any, ...]:
    return sample_type(fields)(*values)


def check_fields(dataset: str, columns: Sequence[str], own: Sequence[str]) -> None:
    """Raise OptionError for columns that cannot be fields of a sample with the fields `own`."""
    for number, name in enumerate(columns):
        if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
            raise OptionError(
                f"{dataset}: the column {name!r} cannot be read as sample.{name}. Rename it with "
                "letters, digits and _, or read it from dataset.frame."
            )
        if name in own or name in columns[:number]:
            raise OptionError(
                f"{dataset}: a sample would have two fields {name!r}. Name each column once. "
                f"Rename a column with the name of a standard field ({', '.join(own)})."
            )
