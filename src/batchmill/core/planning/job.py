"""A job: the manifest, the step, its rights and the output, made from a user's values."""

import glob
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from batchmill.core.manifest.listing import is_glob
from batchmill.core.options.job_options import ConfinementOptions, JobSettings
from batchmill.core.partitions.partitioning import Partitioning, make_partitioning
from batchmill.core.security.allowlist import CONFINE, confinement_is_required
from batchmill.core.storage import is_url
from batchmill.core.urls import absolute
from batchmill.core.user_step.fingerprint import with_sorted_sets
from batchmill.core.user_step.load import reference_to
from batchmill.core.user_step.value.shipping import name_of
from batchmill.errors import OptionError


@dataclass(frozen=True, kw_only=True)
class Confinement:
    """The rights of a confined step, besides its own folders.

    Attributes:
        writable: Folders and files that it may change.
        network: True if it may open TCP connections.
    """

    writable: Sequence[str] = ()
    network: bool = False


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that determines a dataset's content. Paths are absolute, for use in any process.

    Attributes:
        manifest: The path, glob or URL of the manifest.
        step: The reference of the step, or its name if it has no reference.
        value: The step itself, if other processes cannot import it.
        output: The folder or URL of the dataset.
        params: The step's parameters.
        search: A folder that is appended to the import path.
        options: All options. Their root is absolute.
        confinement: The rights of the step. None if the step is not confined.
    """

    manifest: str
    step: str
    output: str
    params: Mapping[str, Any] = field(default_factory=dict)
    search: str = ""
    # Jobs are compared by the plain values that a flow receives.
    value: Any = field(default=None, compare=False, repr=False)
    options: JobSettings = JobSettings()
    confinement: Confinement | None = None

    def with_failures(self, **changes: Any) -> "Job":
        """Return the job with another failure policy."""
        policy = self.options.failures.model_copy(update=changes)
        return replace(self, options=replace(self.options, failures=policy))

    @cached_property
    def partitioning(self) -> Partitioning | None:
        """How to divide the inputs; None without partitions.

        The published tables have a column with each input's partition. Steps do not receive it.
        """
        return make_partitioning(self.options.partitions)

    @property
    def is_over_folders(self) -> bool:
        """True if the inputs are folders."""
        return self.options.inputs.input_kind == "folder"


def make_job(
    *,
    manifest: str,
    step: Any,
    output: str,
    params: Mapping[str, Any] | None = None,
    options: JobSettings = JobSettings(),
) -> Job:
    """Make a job from a user's values: paths become absolute, `~` becomes the home folder.

    The step is a reference, or a function, class or object.

    Raises:
        OptionError: A place is a URL with one slash, a parameter cannot be written as JSON, or
            options do not fit together.
    """
    inputs, run = options.inputs, options.run
    if run.prune and inputs.min_age:
        raise OptionError(
            "--prune and --min-age cannot be combined: files that are too young are not inputs "
            "of this run, so pruning would remove their outputs and rows. Drop one of the options."
        )
    root = absolute(inputs.root) if inputs.root else ""
    make_partitioning(options.partitions)  # Raises OptionError.
    return Job(
        manifest=_absolute_manifest(manifest),
        step=name_of(step),
        value=step if reference_to(step) is None else None,
        output=absolute(output),
        params=plain_params(params or {}),
        search=os.getcwd(),
        options=replace(options, inputs=inputs.model_copy(update={"root": root})),
        confinement=make_confinement(options.confinement),
    )


def _absolute_manifest(manifest: str) -> str:
    place = absolute(manifest) if manifest else ""
    is_kept = is_url(manifest) or manifest.startswith("~") or os.path.isabs(manifest)
    if is_kept or not is_glob(manifest) or os.path.exists(manifest):
        return place
    # The folder's own name may have brackets in it.
    return os.path.join(glob.escape(os.getcwd()), manifest)


def plain_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return params as JSON values, because the plan stores them for other processes."""
    plain = {}
    for name, value in params.items():
        if _has_other_keys(value):
            raise OptionError(
                f"parameter {name!r} is a dict with a key that is not text, which JSON cannot "
                "hold. Write the key as text, or give a list of pairs."
            )
        try:
            plain[name] = to_jsonable_python(with_sorted_sets(value))
            to_json(plain[name])  # Raises for text that is not UTF-8.
        except (PydanticSerializationError, UnicodeError) as error:
            raise OptionError(
                f"parameter {name!r} is a {type(value).__name__}, which cannot be written as JSON. "
                "Give a number, text, list or dict, or the path of a file with the value."
            ) from error
    return plain


def _has_other_keys(value: Any) -> bool:
    if isinstance(value, Mapping):
        return not all(isinstance(key, str) for key in value) or _has_other_keys([*value.values()])
    return isinstance(value, list | tuple) and any(map(_has_other_keys, value))


def make_confinement(options: ConfinementOptions) -> Confinement | None:
    """Return the confinement that options and environment request; None without one.

    Raises OptionError.
    """
    required = confinement_is_required()
    extra = [("--allow-write", options.allow_write), ("--allow-network", options.allow_network)]
    for name, value in extra:
        if value and required:
            raise OptionError(
                f"{name}: is not allowed here, because {CONFINE} is set. Drop the option, or "
                "contact the administrator of the worker."
            )
        if value and not options.confine:
            raise OptionError(f"{name} needs --confine. Add it, or drop {name}.")
    if not (options.confine or required):
        return None
    paths = options.allow_write.split(",")
    return Confinement(
        writable=tuple(absolute(path.strip()) for path in paths if path.strip()),
        network=options.allow_network,
    )
