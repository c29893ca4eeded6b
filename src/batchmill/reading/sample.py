"""Samples: NamedTuples whose fields are those that the dataset has."""

import keyword
from collections import namedtuple
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from batchmill.errors import OptionError


@cache
def sample_type(fields: tuple[str, ...]) -> Callable[..., tuple[Any, ...]]:
    """Return the NamedTuple `Sample` with these fields; always the same class for the same ones."""
    kind = namedtuple("Sample", fields, module=__name__)  # type: ignore[misc]
    # No module has this class under a name, so pickle is told how to make it again.
    kind.__reduce__ = _reduce  # type: ignore[method-assign, assignment]
    return kind


def _reduce(sample: Any) -> tuple[Any, ...]:
    return _sample, (sample._fields, *sample)


def _sample(fields: tuple[str, ...], *values: Any) -> tuple[Any, ...]:
    return sample_type(fields)(*values)


def check_fields(dataset: str, columns: Sequence[str], own: Sequence[str]) -> None:
    """Raise OptionError for columns that cannot be fields of a sample beside its `own` ones."""
    for number, name in enumerate(columns):
        if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
            raise OptionError(
                f"{dataset}: the column {name!r} cannot be read as sample.{name}. Rename it, with "
                "letters, digits and _, or look it up in dataset.frame."
            )
        if name in own or name in columns[:number]:
            raise OptionError(
                f"{dataset}: a sample would have two fields {name!r}. Name each column once, and "
                f"rename one that is called as a sample's own ({', '.join(own)})."
            )
