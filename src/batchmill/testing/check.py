"""Check that a step fulfils the requirements of batchmill."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from batchmill.core.ledger.ledger import Ledger
from batchmill.core.sizes import counted
from batchmill.core.storage import LocalStore
from batchmill.core.storage.scratch import scratch_folder
from batchmill.core.user_step.fingerprint import differences
from batchmill.core.user_step.value.shipping import pickle_digest
from batchmill.datasets.maintenance.verify import verify
from batchmill.errors import BatchmillError, OptionError
from batchmill.runs.execute_again import file_differences, row_differences
from batchmill.testing.fresh_process import Fresh, Result, run_fresh
from batchmill.testing.trial import Trial

_REMEDY = (
    "Make it depend only on its input, its params and its row. Seed random numbers, and write no "
    "times into file headers."
)


def check_step(
    step: str | Callable[..., Any],
    samples: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    *,
    params: Mapping[str, Any] | None = None,
    rows: Sequence[Mapping[str, Any]] | None = None,
    files: Sequence[Mapping[str, str | os.PathLike[str] | None]] | None = None,
) -> list[dict[str, Any]]:
    """Run a step over copies of some files, check it, and return its rows.

    The step runs several times: in DataLoader workers, and in a fresh process.

    Args:
        step: A function, a class, or the reference of one.
        samples: The paths of the files, or one path.
        params: The step's parameters.
        rows: The manifest's other columns of each sample, such as `label` for a torch Dataset that
            takes labels.
        files: The further files of each sample by column, as `file_columns` of `run` gives them.
            None, or no entry, is an empty cell.

    Returns:
        The rows of all samples. `input` is the sample's file name.

    Raises:
        AssertionError: The step has faults. It lists all faults: samples that are not ok, a step or
            params that another process cannot load, changed inputs, or files outside of `out`. A
            result must not depend on the process, the workers, the order, the place or an earlier
            run.
    """
    __tracebackhide__ = True
    listed = [samples] if isinstance(samples, str | os.PathLike) else samples
    paths = [Path(sample).absolute() for sample in listed]
    name = step if isinstance(step, str) else getattr(step, "__qualname__", repr(step))
    try:
        _check_arguments(paths, rows=rows, files=files)
        with scratch_folder() as folder:
            columns = dict.fromkeys(chain.from_iterable(files or []))
            trial = Trial(
                folder=folder / "first",
                step=step,
                params=params or {},
                samples=paths,
                rows=rows or [{}] * len(paths),
                companions=[
                    columns | {column: file or None for column, file in given.items()}
                    for given in files or [{}] * len(paths)
                ],
            )
            trial.set_up()
            before = trial.seen()
            done = trial.run(num_workers=1, batch_size=len(paths))
            first = {sample: done[sample] for sample in trial.names}
            faults = list(_faults(trial, first, before))
    except BatchmillError as error:
        raise AssertionError(_told(name, paths, [str(error)])) from None
    if faults:
        raise AssertionError(_told(name, paths, faults))
    return [
        {"input": path.name, **row}
        for path, result in zip(paths, first.values(), strict=True)
        for row in result.rows
    ]


def _check_arguments(paths: Sequence[Path], **lists: Sequence[Mapping[str, Any]] | None) -> None:
    if not paths:
        raise OptionError("there are no samples. Give the path of at least one file.")
    for path in paths:
        if not path.is_file():
            raise OptionError(f"the sample {path} is not a file. Check the path.")
    for file in (file for companions in lists["files"] or () for file in companions.values()):
        if file and not Path(file).is_file():
            raise OptionError(f"files: {file} is not a file. Check the path.")
    for what, items in lists.items():
        if any("input" in item for item in items or ()):
            raise OptionError(f"{what}: the column `input` has the samples. Rename the key.")
        if items is not None and len(items) != len(paths):
            raise OptionError(
                f"{len(items)} {what} for {len(paths)} samples. "
                f"Give one item of `{what}` per sample."
            )


def _told(name: str, paths: Sequence[Path], faults: Sequence[str]) -> str:
    lines = [f"step {name}, {counted(len(paths), 'sample')}: {counted(len(faults), 'fault')}"]
    lines += [f"  {number}. {fault}" for number, fault in enumerate(faults, 1)]
    return "\n".join(lines)


def _faults(trial: Trial, first: Mapping[str, Result], before: Mapping[str, Any]) -> Iterator[str]:
    """Yield the faults of a step.

    Args:
        trial: The trial after its first run.
        first: The results of this run.
        before: The files of the inputs before it.

    Raises BatchmillError if the step cannot be run.
    """
    for name, result in first.items():
        if result.fault:
            yield f"{name} is not ok: {result.fault}"
    if all(result.fault for result in first.values()):
        return  # There are no results to compare.
    touched = list(_touched(trial, before))
    yield from touched
    yield from _strays(trial)
    fresh = _run_fresh(trial)
    yield from _fresh_faults(fresh, trial)
    # Only the first difference is reported, because the others have the same cause.
    differing = (
        _differing(
            first, _other_workers(trial), "in another run, with other workers in another order,"
        )
        or _differing(first, fresh.results, "in a fresh process, in another folder,")
        or ("" if touched else _second_run(trial, first))
    )
    if differing:
        yield differing


def _differing(first: Mapping[str, Result], others: Mapping[str, Result], when: str) -> str:
    """Describe the first sample with another result. Empty if there is no difference."""
    for name, result in first.items():
        if not result.fault and name in others and others[name] != result:
            what = _difference(result, others[name])
            if what:
                return f"{name}: {when} {what}. {_REMEDY}"
    return ""


def _other_workers(trial: Trial) -> dict[str, Result]:
    again = replace(trial, folder=trial.folder.with_name("again"))
    # Item i of a list belongs to row i, so the order of the rows must not change.
    again.set_up(backwards=trial.prepare().step.kind != "items")
    return again.run(num_workers=2, batch_size=1)


def _run_fresh(trial: Trial) -> Fresh:
    trial = replace(trial, folder=trial.folder.with_name("fresh"))
    trial.set_up()
    prepared = trial.prepare()
    job, step, columns = prepared.job, prepared.step, trial.companions[0]
    # The manifest fills in missing values, and gives each column one type.
    rows = prepared.manifest.manifest_rows()
    listed = zip(trial.names, rows, strict=True)
    task = {
        "step": job.step,
        "params": job.params,
        "search": job.search,
        "inputs": [
            (name, str(trial.inputs / name), row, {column: row[column] for column in columns})
            for name, row in listed
        ],
        "pickle_digest": pickle_digest(step.pickled),
        "description": step.description,
    }
    return run_fresh(trial.folder / "process", task, step.pickled)


def _second_run(trial: Trial, first: Mapping[str, Result]) -> str:
    """Describe a fault of the second run. Empty if there is no fault."""
    pending = trial.prepare().plan.pending
    if len(pending):
        named = pending["input"].to_pylist()[0].removeprefix("inputs/")
        return f"{named}: a second run executes it again ({pending['reason'][0]})."
    ledger = Ledger(LocalStore(trial.job().output))
    records = ledger.records(["input", "outputs"])
    for outputs in records["outputs"].to_pylist():
        if outputs:
            (trial.folder / "dataset" / outputs[0]["path"]).unlink()
            done = trial.run(num_workers=1, batch_size=1)
            return _differing(first, done, "executed again, because an output was deleted,")
    return ""


def _touched(trial: Trial, before: Mapping[str, Any]) -> Iterator[str]:
    after = trial.seen()
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            yield f"{name}: it removed or renamed its input. Only read inputs."
        elif name not in before:
            yield f"{name}: it wrote to its input's folder. Write to `out`."
        elif before[name] != after[name]:
            yield f"{name}: it changed its input. Only read inputs, and write to `out`."


def _strays(trial: Trial) -> Iterator[str]:
    for difference in verify(Ledger(LocalStore(trial.job().output))):
        if difference.kind == "unreferenced":
            yield f"it wrote {difference.path} into the dataset, outside of `out`. Write to `out`."


def _fresh_faults(fresh: Fresh, trial: Trial) -> Iterator[str]:
    if fresh.fault:
        yield f"another process cannot run it: {fresh.fault}"
        return
    for place in fresh.left:
        yield f"it left a file in {place}. Write to `out`, or remove the file."
    known = dict(trial.prepare().step.description)
    known.pop("order", None)  # The order belongs to the manifest, not to the step.
    for line in differences(json.loads(json.dumps(known)), fresh.description):
        yield (
            f"its identity differs in each process: {line}. Each run would execute all inputs "
            "again. Make params and `version` plain values that never change."
        )


def _difference(first: Result, other: Result) -> str:
    """Return the first difference between two results of one input. Empty if they are equal."""
    if other.fault:
        return f"it is not ok: {other.fault}"
    unlike = [*file_differences(first.files, other.files), *row_differences(first.rows, other.rows)]
    return f"its result differs: {unlike[0].text}" if unlike else ""
