"""Execute a random sample of a dataset with a changed step, and show what the change does.

The results are discarded. The comparison is that of `--verify-change`.
"""

import heapq
import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from operator import attrgetter, itemgetter
from statistics import fmean
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.state import OK
from batchmill.core.manifest.file_stats import MISSING_SIZE
from batchmill.core.options.job_options import RunOptions
from batchmill.core.planning.changed_code import ChangeCheck
from batchmill.core.planning.forecast_sample import random_sample
from batchmill.core.planning.job import make_job
from batchmill.core.planning.prepare import Prepared, plan_with, prepare
from batchmill.core.planning.recorded_job import recorded_job
from batchmill.core.storage import Store
from batchmill.core.storage.name_search import rows_of
from batchmill.datasets.publishing.report.file_comparison import (
    FileComparison,
    compare_files,
    compare_sizes,
    compare_values,
    is_number,
)
from batchmill.datasets.publishing.report.review import ChangedInput, ColumnChange, Review
from batchmill.errors import OptionError, StoreError
from batchmill.runs.execute_again import (
    NO_OUTCOME,
    RESULT_COLUMNS,
    ResultDifference,
    count_kinds,
    differences,
    failure_text,
    file_name,
    made_again,
    rows_of_record,
)

_SHOWN_INPUTS, _SHOWN_COLUMNS, _SHOWN_FILES, _SHOWN_DIFFERENCES = 12, 20, 4, 10
# Larger files are compared by their sizes.
_FILE_BYTES = 16 * 2**20
_BINS, _MOST_VALUES = 24, 8
_COLUMNS = (*RESULT_COLUMNS, "seconds")

_Record = Mapping[str, Any]


def review(
    dataset: str,
    *,
    params: Mapping[str, Any] = MappingProxyType({}),
    step: Any = None,
    count: int = 300,
    seed: int | None = None,
    on_sample: Callable[[int], None] = lambda _: None,
) -> Review:
    """Execute a random sample of a dataset with a changed step, and compare it with the results.

    Inputs whose files have changed are left out, because the change of the step does not matter
    for them. Nothing is written.

    Args:
        dataset: The path or URL of the dataset. Its recorded job is executed.
        params: Parameters of the step with other values.
        step: Another step. None: the recorded one, as its code is now.
        count: The number of inputs to execute.
        seed: The seed of the sample. None: a new one.
        on_sample: Called with the number of inputs before they are executed.

    Raises:
        OptionError: There is no outcome to compare with, or the step cannot run on a sample.
        BatchmillError: Any error of `prepare` and of the shards.
    """
    with recorded_job(dataset, step=step) as job:
        failures = job.options.failures.model_copy(update={"max_failures": "100%", "expect": ()})
        options = replace(job.options, failures=failures, run=RunOptions(replace_step=True))
        made = make_job(**vars(replace(job, params={**job.params, **params}, options=options)))
        prepared = prepare(made)
        if prepared.step.kind == "items":
            raise OptionError(
                "a step with one item per row of the manifest cannot run on a sample."
            )
        names = _unchanged(prepared)
        if not len(names):
            raise OptionError(f"{dataset}: has no outcome to compare with. Run its job first.")
        if seed is None:
            seed = secrets.randbelow(2**31)
        names = names.take(pc.sort_indices(names))  # A run may change the order of the state.
        chosen = names.take(pa.array(random_sample(len(names), count, seed)))
        rows = rows_of(chosen, prepared.manifest.inputs["input"])
        on_sample(len(rows))
        before = prepared.state.of(chosen).records(_COLUMNS).to_pylist()
        with made_again(prepared, rows) as again:
            return _compare(prepared, len(names), seed, before, again)


def _unchanged(prepared: Prepared) -> pa.ChunkedArray:
    """Return the inputs that were executed, and whose files are there and have not changed."""
    earlier = frozenset(prepared.state.table["step"].unique().to_pylist())
    # A plan as if the results of all earlier steps were equal has only other reasons.
    plan = plan_with(prepared, ChangeCheck(steps=earlier, sample=1)).plan
    is_changed = pc.is_in(plan.pending["reason"], value_set=pa.array(["new", "changed"]))
    changed = plan.pending.filter(is_changed)["input"]
    inputs = prepared.manifest.inputs
    has_file = pc.not_equal(inputs["size"], MISSING_SIZE)
    state = prepared.state.of(inputs.filter(has_file)["input"])
    is_failed = pc.not_equal(state.table["outcome"], OK)
    return state.select(pc.or_(is_failed, rows_of(state.names, changed).is_null())).names


def _compare(
    prepared: Prepared, inputs: int, seed: int, before: Sequence[_Record], again: Ledger
) -> Review:
    now = again.records(_COLUMNS).to_pylist()
    after = {record["input"]: record for record in now}
    appeared, vanished = {}, {}
    both: list[tuple[_Record, _Record]] = []
    for old in sorted(before, key=itemgetter("input")):
        name, new = old["input"], after.get(old["input"])
        was_ok, is_ok = old["outcome"] == "ok", new is not None and new["outcome"] == "ok"
        if was_ok and new is not None and is_ok:
            both.append((old, new))
        elif was_ok:
            appeared[name] = failure_text(new) if new else NO_OUTCOME
        elif is_ok:
            vanished[name] = failure_text(old)
    per_input = [list(differences(*pair)) for pair in both]
    counts = count_kinds(per_input)
    changed = [(pair, those) for pair, those in zip(both, per_input, strict=True) if those]
    stores = prepared.ledger.store, again.store
    compared = (_compare_input(pair, those, stores) for pair, those in changed)
    sides = [[pair[side] for pair in both] for side in (0, 1)]
    return Review(
        dataset=prepared.job.output,
        changes=[*prepared.step_changes, *(change.text for change in prepared.library_changes)],
        inputs=inputs,
        sample=len(before),
        seed=seed,
        results=len(both),
        different=len(changed),
        counts=dict(counts.most_common(_SHOWN_COLUMNS)),
        most_changed=heapq.nlargest(_SHOWN_INPUTS, compared, key=attrgetter("change")),
        appeared=appeared,
        vanished=vanished,
        columns=list(islice(_column_changes(*map(_values, sides)), _SHOWN_COLUMNS)),
        # Failed inputs take time, too.
        seconds=[sum(record["seconds"] for record in side) / len(before) for side in (before, now)],
        bytes=[sum(map(_bytes, side)) / len(before) for side in (before, now)],
    )


def _compare_input(
    pair: tuple[_Record, _Record], differing: Sequence[ResultDifference], stores: Sequence[Store]
) -> ChangedInput:
    files = [{file_name(file["path"]): file for file in record["outputs"]} for record in pair]
    rows = [rows_of_record(record) for record in pair]
    compared = {
        name: _compare_outputs(name, (old, files[1][name]), stores)
        for name, old in files[0].items()
        if name in files[1] and old["content"] != files[1][name]["content"]
    }
    is_other = files[0].keys() != files[1].keys() or len(rows[0]) != len(rows[1])
    values = [
        compare_values(old.get(column), new.get(column))
        for old, new in zip(*rows, strict=False)
        for column in old.keys() | new.keys()
    ]
    others = (difference.text for difference in differing if difference.what not in compared)
    of_files = sum(comparison.change for comparison in compared.values())
    return ChangedInput(
        input=pair[0]["input"],
        change=is_other + of_files + sum(values) / max(len(rows[0]), 1),
        files=dict(heapq.nlargest(_SHOWN_FILES, compared.items(), key=lambda item: item[1].change)),
        others=list(islice(others, _SHOWN_DIFFERENCES)),
        more_files=max(0, len(compared) - _SHOWN_FILES),
    )


def _compare_outputs(
    name: str, outputs: tuple[_Record, _Record], stores: Sequence[Store]
) -> FileComparison:
    sizes = [output["size"] for output in outputs]
    places = [output["pack"] or output["path"] for output in outputs]
    if max(sizes) <= _FILE_BYTES:
        # The recorded file may have been deleted.
        with suppress(StoreError):
            before, after = (store.read(at) for store, at in zip(stores, places, strict=True))
            return compare_files(name, before, after)
    return compare_sizes(*sizes)


def _column_changes(
    before: Mapping[str, list[Any]], after: Mapping[str, list[Any]]
) -> Iterator[ColumnChange]:
    for name in [name for name in before if name in after and before[name] != after[name]]:
        sides = before[name], after[name]
        describe = _numbers if all(map(is_number, chain(*sides))) else _frequent
        shown = [describe(side) for side in sides]
        # Many different texts have no distribution to show.
        if shown[0] == shown[1] or not all(shown):
            continue
        bars = list(_histograms(*sides)) if describe is _numbers else []
        yield ColumnChange(name=name, before=shown[0], after=shown[1], bars=bars)


def _numbers(values: Sequence[float]) -> dict[str, float]:
    return {"mean": fmean(values), "minimum": min(values), "maximum": max(values)}


def _frequent(values: Sequence[Any]) -> dict[str, float]:
    """Return the number of rows by value; nothing if the values are many."""
    counts = Counter(value if isinstance(value, str) else json.dumps(value) for value in values)
    return dict(counts.most_common()) if len(counts) <= _MOST_VALUES else {}


def _histograms(*sides: Sequence[float]) -> Iterator[list[int]]:
    ends = min(map(min, sides)), max(map(max, sides))
    # The range may be too small for a float, as of times in nanoseconds.
    with suppress(ValueError):
        for side in sides:
            yield np.histogram(np.asarray(side, float), _BINS, ends)[0].tolist()


def _values(records: Sequence[_Record]) -> dict[str, list[Any]]:
    """Return the values in each column of the rows of some records."""
    columns: dict[str, list[Any]] = {}
    for record in records:
        for row in rows_of_record(record):
            for name, value in row.items():
                columns.setdefault(name, []).append(value)
    return columns


def _bytes(record: _Record) -> int:
    return sum(file["size"] for file in record["outputs"])
