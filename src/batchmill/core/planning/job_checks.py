"""Check that the parts of a job fit together, before it is planned and after."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.digests import digest
from batchmill.core.manifest import Manifest
from batchmill.core.manifest.file_stats import MISSING_SIZE
from batchmill.core.options.conditions import names_schema
from batchmill.core.planning.job import Job
from batchmill.core.planning.plan import Plan
from batchmill.core.storage.remote import UNKNOWN_TIME
from batchmill.core.urls import join, same_place, shown_url
from batchmill.core.user_step.fingerprint import identity_of
from batchmill.core.user_step.import_reference import resolve_reference
from batchmill.core.user_step.load import Step
from batchmill.errors import ManifestError, OptionError, StepError


def check_other_place(job: Job, manifest: str) -> None:
    """Raise OptionError if the manifest is the output, or one of its versions."""
    if manifest and same_place(manifest, job.output):
        raise OptionError(
            f"--output {job.output}: is the same dataset as the manifest. Choose another output."
        )


def check_kind(job: Job, step: Step) -> None:
    """Raise OptionError if an option does not fit the kind of the step: batched or async."""
    if job.confinement and step.is_batched:
        raise OptionError(
            f"--confine: step {step.ref} is a batch step, which cannot be confined. Drop the "
            "option, or use a step that handles one input."
        )
    if step.is_async and job.confinement:
        raise OptionError(
            f"--confine: step {step.ref} is async, and a confined process executes one input at a "
            "time. Drop the option, or use a plain function."
        )
    if step.is_async:
        return
    execution = job.options.execution
    has_concurrency = (execution.concurrency or 1) > 1
    for name, value in (("--concurrency", has_concurrency), ("--rate", execution.rate_per_second)):
        if value:
            raise OptionError(
                f"{name}: step {step.ref} is not async. Use an async function, or --num-workers "
                "for the number of inputs at a time."
            )


def check_missing(job: Job, manifest: Manifest, plan: Plan) -> None:
    """Raise ManifestError if most inputs do not exist, before they all become failed inputs."""
    # A file whose time is unknown may exist: its web server does not respond.
    time, size = manifest.inputs["mtime_ns"], manifest.inputs["size"]
    is_absent = pc.and_(pc.equal(size, MISSING_SIZE), pc.not_equal(time, UNKNOWN_TIME))
    absent = manifest.inputs["input"].filter(is_absent)
    if 2 * len(absent) <= len(manifest):
        return
    masks = [pc.is_in(absent, value_set=due) for due in (plan.pending["input"], plan.unreadable)]
    names = absent.filter(pc.or_(*masks)).to_pylist()
    if 2 * len(names) <= len(manifest):
        return
    (file,) = manifest.missing_files(pa.chunked_array([names[:1]]))
    first = shown_url(join(manifest.root, file))
    # A table may come from Windows.
    remedy = (
        "Write / instead of \\ in the manifest."
        if "\\" in first
        else "Check the manifest. Relative paths start in its folder, or in --root."
    )
    fault = (
        f"{len(names):,} of {len(manifest):,} inputs do not exist. The first one is {first}. "
        f"{remedy} To run the job anyway: --allow-missing"
    )
    raise ManifestError(job.manifest, [fault])


def fitted(step: Step, manifest: Manifest) -> Step:
    """Return the step for this manifest. Raises StepError if the step does not fit it."""
    if "labels" in step.given and "label" not in manifest.manifest_columns.column_names:
        raise StepError(
            f"step {step.ref}: takes labels, but the manifest has no column 'label' "
            f"(found: {', '.join(manifest.manifest_columns.column_names) or 'none'}). "
            "Add or rename one."
        )
    if step.kind != "items":
        return step
    items = _length(step)
    if items != len(manifest):
        raise StepError(
            f"step {step.ref}: has {items} items for {len(manifest)} inputs. "
            "Its item i belongs to row i of the manifest."
        )
    # Item i belongs to row i, so other rows or another order make it another step.
    order = digest("order", *manifest.inputs["input"].to_pylist())
    description = {**step.description, "order": order}
    return replace(step, identity=identity_of(description), description=description)


def _length(step: Step) -> int:
    try:
        return len(step.target)
    except Exception as error:
        raise StepError(
            f"step {step.ref}: its len() raised {type(error).__name__}: {error}. It must return "
            "the number of items, one per row of the manifest."
        ) from error


def load_schemas(expectations: Sequence[str], search: str) -> dict[str, Any]:
    """Return the schemas that expectations name, by their names.

    Args:
        expectations: Conditions, and names of schemas: module:SCHEMA.
        search: A folder that is appended to the import path. It stays there.

    Raises:
        StepError: A schema cannot be imported.
        OptionError: A schema may not be used here, or is no schema.
    """
    names = [text.strip() for text in expectations if names_schema(text)]
    schemas = {name: resolve_reference(name, "--expect", search) for name in names}
    for name, schema in schemas.items():
        if not callable(getattr(schema, "validate", None)):
            raise OptionError(
                f"--expect {name}: is a {type(schema).__name__}, and not a schema of Pandera. Name "
                "a DataFrameSchema or a DataFrameModel."
            )
    return schemas
