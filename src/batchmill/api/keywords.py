"""The options of the Python calls, for type checkers and for `help()`.

The option models define the names and defaults. A type checker needs them in the source, so these
classes repeat the names, with the types that a Python caller may pass. A test compares them with
the models.
"""

import inspect
import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, TypeVar, get_type_hints

from batchmill.options.base import Options
from batchmill.options.job_settings import JobSettings

_Call = TypeVar("_Call", bound=Callable[..., Any])


class JobKeywords(TypedDict, total=False):
    """Options of `run` and `plan`."""

    input_column: str
    input_kind: Literal["file", "folder"]
    file_columns: Sequence[str] | str
    root: str | os.PathLike[str]
    pattern: str
    min_age: float
    allow_missing: bool
    partition: str | Mapping[str, float]
    group_by: str
    stratify: str
    seed: int
    batch_size: int | None
    num_workers: int | Literal["auto"] | None
    concurrency: int | None
    rate: str
    pack: str
    log_steps: Literal["off", "debug", "info", "warning", "error"]
    confine: bool
    allow_write: Sequence[str] | str | os.PathLike[str]
    allow_network: bool
    retries: int
    timeout: float | None
    memory_limit: str | int
    max_failures: int | str
    known_failures: Literal["failed", "ok"]
    fail_fast: bool
    expect: Sequence[str] | str
    force: bool
    replace_step: bool
    accept_change: bool
    verify_change: int
    sample: int
    budget: str
    prune: bool
    prune_failed: bool
    keep_versions: int
    wait: bool


class InferKeywords(JobKeywords, total=False):
    """Options of `infer`."""

    weights: str | os.PathLike[str]
    load: str
    collate: str
    device: str
    classes: Sequence[str] | str
    predictions: Literal["rows", "files"]


def with_options(*more: type[Options]) -> Callable[[_Call], _Call]:
    """Return a decorator that adds the options of the models to a signature and a docstring."""
    groups = [type(group) for group in JobSettings().parameters().values()]

    def describe(call: _Call) -> _Call:
        fields = {
            name: field for group in (*more, *groups) for name, field in group.model_fields.items()
        }
        signature = inspect.signature(call)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        types = get_type_hints(InferKeywords)
        flat = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=types[name],
            )
            for name, field in fields.items()
        ]
        call.__signature__ = signature.replace(parameters=[*own, *flat])  # type: ignore[attr-defined]
        lines = [
            textwrap.fill(
                f"{name}: {field.description}",
                width=96,
                initial_indent=" " * 4,
                subsequent_indent=" " * 8,
            )
            for name, field in fields.items()
        ]
        call.__doc__ = f"{inspect.getdoc(call)}\n\nOptions:\n" + "\n".join(lines) + "\n"
        return call

    return describe
