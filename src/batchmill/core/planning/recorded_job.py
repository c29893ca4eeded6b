"""The job of a dataset, as its last run has recorded it."""

import os
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from batchmill.core.ledger.open import last_run, open_ledger
from batchmill.core.options.job_options import JobSettings
from batchmill.core.planning.run_spec import RunSpec, read_spec
from batchmill.core.urls import absolute
from batchmill.errors import OptionError


@dataclass(frozen=True, kw_only=True)
class RecordedJob:
    """The job of the last run over a dataset, without the options of that run alone.

    Attributes:
        manifest: Its path or URL, or the given manifest.
        step: Its reference, or the given step.
        output: The path or URL of the dataset.
        params: The keyword arguments of the step.
        options: The options.
    """

    manifest: Any
    step: Any
    output: str
    params: Mapping[str, Any]
    options: JobSettings


@contextmanager
def recorded_job(
    dataset: str, *, manifest: Any = None, step: Any = None, root: str = ""
) -> Iterator[RecordedJob]:
    """Yield the job of the last run over a dataset.

    The working folder is that of the last run if it still exists, because the step may be in it.

    Args:
        dataset: The dataset's path or URL.
        manifest: Another manifest. None: the recorded one.
        step: Another step. None: the recorded one.
        root: Another root of the inputs. Empty: the recorded option.

    Raises:
        OptionError: There is no such dataset, or its step is in no module.
    """
    spec = _last_spec(dataset)
    if step is None and not spec.can_import:
        raise OptionError(
            f"{dataset}: its step {spec.step} is in no module that this process can import, such "
            "as a function of a notebook. Give the step: --step MODULE:FUNCTION."
        )
    options = spec.options
    if root:
        inputs = options.inputs.model_copy(update={"root": root})
        options = replace(options, inputs=inputs)
    place = absolute(dataset)  # Before the working folder changes.
    with chdir(spec.search) if os.path.isdir(spec.search) else nullcontext():
        yield RecordedJob(
            manifest=spec.manifest if manifest is None else manifest,
            step=spec.step if step is None else step,
            output=place,
            params=spec.params,
            options=options,
        )


def jobs_to_update(dataset: str, *, deep: bool = False, **changes: Any) -> Iterator[RecordedJob]:
    """Yield the recorded jobs that bring a dataset up to date, in their order.

    Args:
        dataset: The dataset's path or URL.
        deep: First the datasets that its inputs are from.
        **changes: As for `recorded_job`. They are for the job of the dataset itself.

    Raises the errors of `recorded_job`.
    """
    place = absolute(dataset)
    for updated in upstream_first(place) if deep else [place]:
        with recorded_job(updated, **(changes if updated == place else {})) as job:
            yield job


def why_not_updated(dataset: str, failed: str) -> str:
    """Return why an update ended before its dataset. Empty if that dataset itself has failed."""
    place = absolute(dataset)
    return "" if failed == place else f"{place}: not updated, because {failed} failed."


def upstream_first(dataset: str) -> list[str]:
    """Return the datasets that a dataset is made of, the first one first, and the dataset itself.

    A version that the manifest names stays as it is, so it ends the chain.
    """
    chain = [dataset]
    while (spec := _last_spec(chain[0])).source_dataset and not spec.names_version:
        if spec.source_dataset in chain:
            break
        chain.insert(0, spec.source_dataset)
    return chain


def _last_spec(dataset: str) -> RunSpec:
    ledger = open_ledger(dataset)
    return read_spec(ledger, last_run(ledger, dataset))
