"""Make the state that a run leaves of the state before it, its plan and its outcomes. Pure."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.ledger.state import MISSING, State
from batchmill.core.manifest import Manifest
from batchmill.core.options.job_options import RunOptions
from batchmill.core.planning.changed_files import TIMES
from batchmill.core.planning.plan import Plan
from batchmill.core.storage.large_tables import Column
from batchmill.core.storage.name_search import rows_of
from batchmill.core.urls import is_web, join, shown_url


def advance(
    state: State,
    plan: Plan,
    manifest: Manifest,
    outcomes: State | None,
    options: RunOptions,
    step: str,
    libraries: Sequence[str] = (),
) -> State:
    """Return the state that a run leaves. Without any change, it is the same object.

    Args:
        state: The state that the plan was made of.
        plan: The plan of the run.
        manifest: The manifest of the run.
        outcomes: The outcomes of the run. None: it executed nothing.
        options: The options of the run. They may remove results.
        step: The identity of the step of the run.
        libraries: The present versions of each set of libraries in the state, if results with
            other versions are accepted.
    """
    state = _with_absences(state, plan.absences, manifest)
    # The next run would read or execute these inputs again.
    times = manifest.inputs.select(["input", *TIMES]).take(
        rows_of(plan.touched, manifest.inputs["input"])
    )
    state = state.changed(plan.touched, **{name: times[name] for name in TIMES})
    state = state.changed(plan.adopted, step=step)
    if libraries and len(plan.adopted):
        state = state.with_libraries(plan.adopted, libraries)
    if outcomes is not None and len(outcomes):
        state = state.with_outcomes(outcomes)
    if options.prune_failed:
        done = None if outcomes is None else outcomes.names
        state = state.without_results(_with_results_to_drop(state, plan, done))
    if options.prune and len(plan.withdrawn):
        state = state.not_of(plan.withdrawn)
    return state


def _with_absences(state: State, absences: pa.Table, manifest: Manifest) -> State:
    """Record which inputs are withdrawn or missing, and which are there again."""
    if not len(absences):
        return state
    missing = absences["input"].filter(pc.equal(absences["absence"], MISSING))
    places = [join(manifest.root, file) for file in manifest.missing_files(missing)]
    more = {True: ", or its server does not respond", False: ""}
    texts = [f"{shown_url(place)}: no such file{more[is_web(place)]}." for place in places]
    notes = pa.array(texts, pa.string())
    return state.changed(
        absences["input"],
        absence=absences["absence"],
        note=notes.take(rows_of(absences["input"], missing)),
    )


def _with_results_to_drop(state: State, plan: Plan, done: Column | None) -> pa.ChunkedArray:
    """Return the inputs that are not ok and keep an earlier result.

    An input that the run should have executed, and has not, keeps it. So does one whose file cannot
    be found.
    """
    is_missing = pc.equal(state.table["absence"], MISSING).fill_null(False)
    keeps = pc.and_not(state.table["result_run"].is_valid(), is_missing)
    names = state.select(keeps).names
    due = pa.concat_tables([plan.pending, *filter(None, [plan.left])])["input"]
    if done is not None:
        due = due.filter(rows_of(due, done).is_null())
    return names.filter(rows_of(names, due).is_null())
