"""Check a job and plan it, before a run."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.layout import PARTITION_COLUMN
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.open import open_output
from batchmill.core.ledger.proof_records import Adoption
from batchmill.core.ledger.state import State
from batchmill.core.manifest import Manifest, ManifestLike, load_manifest
from batchmill.core.partitions.record import Assignment, last_assignment
from batchmill.core.planning.batching import Cores, Layout, plan_shards
from batchmill.core.planning.changed_code import ChangeCheck
from batchmill.core.planning.changed_files import detect_changes
from batchmill.core.planning.changed_libraries import LibraryChange, RecordedLibraries
from batchmill.core.planning.decisions import Criteria
from batchmill.core.planning.earlier_runs import EarlierSteps, inputs_below_limits
from batchmill.core.planning.forecast import Forecast, make_forecast
from batchmill.core.planning.forecast_sample import sampled
from batchmill.core.planning.job import Job
from batchmill.core.planning.job_checks import (
    check_kind,
    check_missing,
    check_other_place,
    fitted,
    load_schemas,
)
from batchmill.core.planning.partition_assignment import (
    assign_manifest,
    check_rows,
    reasons_to_reassign,
)
from batchmill.core.planning.plan import PLANNED_COLUMNS, Plan, make_plan, match_records
from batchmill.core.security.allowlist import check_step
from batchmill.core.sizes import counted
from batchmill.core.urls import is_url
from batchmill.core.user_step.load import Step
from batchmill.core.user_step.value.shipping import load_given_step

_SHOWN_CHANGES = 5


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A checked job and its plan.

    Attributes:
        job: The job.
        manifest: Its checked manifest.
        step: Its step.
        ledger: The dataset's ledger.
        plan: The plan.
        state: The state that the plan is based on.
        changes: The changes of the ledger before the manifest was read.
        forced_after: The last run whose outcomes a forced run ignores. None without `--force`.
        step_changes: The differences from the step of the earlier records, one line each.
        assignment: The partition of each input, to record. None without partitions.
        partition_changes: The changed partition options, one line each.
        change_check: The result of `--verify-change`. None before the comparison.
        library_changes: The libraries with other versions than those that made results.
        libraries: The present versions of each set of libraries in the state, if results with
            other versions are accepted.
    """

    job: Job
    manifest: Manifest
    step: Step
    ledger: Ledger
    plan: Plan
    state: State
    changes: Sequence[str]
    step_changes: Sequence[str]
    forced_after: int | None = None
    assignment: Assignment | None = None
    partition_changes: Sequence[str] = ()
    change_check: ChangeCheck | None = None
    library_changes: Sequence[LibraryChange] = ()
    libraries: Sequence[str] = ()

    def adoption(self, run: int = 0) -> Adoption | None:
        """Return which outcomes of earlier code a run keeps, and why. None without such outcomes.

        Args:
            run: The number of the run.
        """
        count, check = len(self.plan.adopted), self.change_check or ChangeCheck()
        if not count:
            return None
        return Adoption(run=run, outcomes=count, sample=check.sample, seed=check.seed)

    def layout(self, cores: Cores) -> Layout:
        """Divide the pending inputs into shards."""
        return plan_shards(
            self.plan.pending["size"].to_numpy(),
            self.job.options.execution,
            cores,
            whole_batches=self.step.is_batched,
            remote=self.is_remote,
            is_async=self.step.is_async,
        )

    def change_lines(self) -> list[str]:
        """Return lines with the changes of the step and its libraries, and if they are accepted."""
        changes = [*self.step_changes]
        notes = [change.text for change in self.library_changes]
        if self.job.options.run.libraries == "count":
            changes += [f"library {change.versions}" for change in self.library_changes]
            notes = []
        more = len(changes) - _SHOWN_CHANGES
        shown = [*changes[:_SHOWN_CHANGES], *([counted(more, "more change")] if more > 0 else [])]
        adoption = self.adoption()
        what = "Accepted change" if adoption else "Re-running all inputs"
        accepted = [adoption.text] if adoption else []
        return [*accepted, *(f"{what}: {line}." for line in shown), *notes]

    @property
    def partition(self) -> pa.ChunkedArray | None:
        """The partition of each input of the manifest. None without partitions."""
        if self.assignment is None:
            return None
        return self.assignment.rows[PARTITION_COLUMN].slice(0, len(self.manifest))

    @property
    def is_remote(self) -> bool:
        """True if some inputs are fetched, or outputs are uploaded."""
        if is_url(self.job.output) or is_url(self.manifest.root):
            return True
        return bool(pc.any(pc.match_substring(self.plan.pending["input"], "://")).as_py())


def prepare(job: Job, listed: ManifestLike | None = None) -> Prepared:
    """Check a job and plan it. Starts nothing and writes nothing.

    An input's content is read only if its time changed and its size did not.

    Args:
        job: The job.
        listed: A list or DataFrame, which the run will save as the job's manifest.

    Returns:
        The checked job and its plan.

    Raises:
        ManifestError: The manifest cannot be used.
        StepError: The step cannot be used.
        OptionError: An option cannot be used.
        LedgerError: The ledger cannot be read.
        StoreError: A store does not respond.
    """
    check_step(job.step)
    if listed is None:
        check_other_place(job, job.manifest)
    ledger = open_output(job.output)
    # This is read before the manifest. Otherwise another run could record inputs that are missing
    # in this manifest, and the change would not be noticed.
    changes = ledger.changes()
    # The manifest is read before the step, so that a rejected job imports no user code.
    manifest = _read_manifest(job, listed)
    check_other_place(job, manifest.dataset)
    unloaded = job.step if job.value is None else job.value
    step = load_given_step(
        unloaded, job.params, search=job.search, file_columns=job.options.inputs.file_column_names
    )
    check_kind(job, step)
    load_schemas(job.options.failures.expect, job.search)
    return _plan(job, manifest, step, ledger, changes)


def forecast_for(prepared: Prepared, state: State, inputs: pa.Table) -> Forecast | None:
    """Forecast a run over some inputs of a job: its pending ones, or those outside its sample.

    Args:
        prepared: The prepared job.
        state: The state of the dataset now.
        inputs: The inputs, with the columns of `Plan.pending`.

    Returns:
        The forecast. None without inputs, or if the step has no outcome yet.
    """
    return make_forecast(
        prepared.ledger,
        state,
        prepared.step.identity,
        inputs,
        is_remote=is_url(prepared.manifest.root),
    )


def plan_again(prepared: Prepared, *, always: bool = False) -> Prepared:
    """Plan again if the ledger changed since `prepared`, or `always`.

    Another run changed the ledger, and may have executed new inputs. So the manifest is also read
    again, unless it is a list in memory. Raises the errors of `prepare`.
    """
    job, ledger = prepared.job, prepared.ledger
    changes = ledger.changes()
    if changes == prepared.changes and not always:
        return prepared
    manifest = prepared.manifest if prepared.manifest.in_memory else _read_manifest(job)
    return _plan(job, manifest, prepared.step, ledger, changes, prepared.change_check)


def plan_with(prepared: Prepared, check: ChangeCheck) -> Prepared:
    """Plan again with the result of `--verify-change`. If it is equal, outcomes are adopted."""
    return _plan(
        prepared.job, prepared.manifest, prepared.step, prepared.ledger, prepared.changes,
        check, prepared.state,
    )  # fmt: skip


def code_changes(prepared: Prepared) -> ChangeCheck:
    """Return the earlier versions of the step that differ only in their code, or why none does."""
    return EarlierSteps(prepared.ledger, prepared.state).versions_of(prepared.step)


def _read_manifest(job: Job, listed: ManifestLike | None = None) -> Manifest:
    inputs = job.options.inputs
    return load_manifest(
        job.manifest if listed is None else listed,
        input_column=inputs.input_column,
        file_columns=inputs.file_column_names,
        folders=job.is_over_folders,
        root=inputs.root or None,
        pattern=inputs.pattern,
        min_age=inputs.min_age,
        partitioning=job.partitioning,
    )


def _plan(
    job: Job,
    manifest: Manifest,
    step: Step,
    ledger: Ledger,
    changes: Sequence[str],
    check: ChangeCheck | None = None,
    state: State | None = None,
) -> Prepared:
    step = fitted(step, manifest)
    step.check_input_kind(is_folder=job.is_over_folders)
    with ThreadPoolExecutor(2) as pool:
        listed = pool.submit(ledger.released)
        state = state or ledger.state()
        steps = pool.submit(EarlierSteps, ledger, state)
        records = state.records([*PLANNED_COLUMNS, *(["carried"] if step.takes_rows else [])])
    released, earlier = listed.result(), steps.result()
    options = job.options.run
    if not options.replace_step:
        earlier.check_same(job)
    matched = match_records(records, manifest.inputs)
    adopted = earlier.accepted(step) if options.accept_change else frozenset[str]()
    if check and check.is_equal:
        adopted = check.steps
    identities = {step.identity, *adopted}
    file_changes = detect_changes(
        manifest, matched.done, identities, ledger.store, folders=job.is_over_folders
    )
    libraries = RecordedLibraries.read(state, identities, step.target)
    counts_libraries = options.libraries == "count"
    accepts = options.accept_change or (check is not None and check.is_equal)
    forced_after = _forced_after(ledger) if options.force else None
    plan = make_plan(
        manifest,
        matched,
        Criteria(
            step.identity,
            takes_rows=step.takes_rows,
            released=released,
            changes=file_changes,
            below_limits=inputs_below_limits(ledger, state, job.options.failures),
            forced_after=forced_after,
            adopted_steps=adopted,
            other_libraries=libraries.others() if counts_libraries else (),
            accepts_libraries=accepts,
        ),
    )
    if not job.options.inputs.allow_missing:
        check_missing(job, manifest, plan)
    if options.sample:
        plan = sampled(plan, manifest, options.sample)
    assignment, partition_changes = None, list[str]()
    if job.partitioning:
        # These recorded rows are replaced or withdrawn, so they need no check.
        unchecked = [*plan.pending["input"].chunks, *plan.withdrawn.chunks]
        check_rows(state.not_of(pa.chunked_array(unchecked, pa.string())))
        last = last_assignment(ledger)
        partition_changes = reasons_to_reassign(last, job.partitioning)
        assignment = assign_manifest(last, state, manifest, job.partitioning)
    return Prepared(
        job=job,
        manifest=manifest,
        step=step,
        ledger=ledger,
        plan=plan,
        state=state,
        changes=changes,
        step_changes=earlier.changes(step, plan),
        forced_after=forced_after,
        assignment=assignment,
        partition_changes=partition_changes,
        change_check=check,
        library_changes=() if options.force else libraries.changes(),
        libraries=libraries.present() if counts_libraries and accepts else (),
    )


def _forced_after(ledger: Ledger) -> int:
    """Return the last run whose outcomes a forced run ignores.

    If the last run was forced and did not end, this run resumes it.
    """
    last = ledger.last_known_run()
    before, summary = ledger.control.read_forced(last), ledger.read_summary(last)
    has_ended = summary is not None and not summary["pending"]
    return last if before is None or has_ended else before
