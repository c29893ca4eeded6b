"""The summary of a run, computed only from its plan and the ledger."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.proof_records import Adoption
from batchmill.core.ledger.recorded_outputs import listed_outputs
from batchmill.core.ledger.state import MISSING, State, as_shown
from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.outcome import KINDS, one_line
from batchmill.core.planning.changed_libraries import versions_in
from batchmill.core.planning.decisions import UNREADABLE
from batchmill.core.planning.plan_file import PlanFile
from batchmill.core.planning.run_spec import SHOWN_NAMES, read_spec
from batchmill.core.sizes import counted, list_counts
from batchmill.core.storage.large_tables import count_values
from batchmill.core.storage.name_search import rows_of
from batchmill.datasets.publishing.failure_groups import FailureGroup, Failures, read_failures


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The state of a dataset's inputs after (or during) a run.

    Attributes:
        run: The run's number.
        inputs: The number of inputs in the manifest.
        outcomes: The number of inputs by outcome. Inputs with an earlier result count as missing if
            their file cannot be found. Their result stays.
        pending: The number of inputs without an outcome.
        executed: The number of inputs whose step was started in this run.
        counts: The number of inputs by reason in the run's plan.
        failures: The first few failed inputs of the dataset, with their reasons.
        groups: The failed inputs of the dataset by their cause, the largest group first.
        results_kept: The number of inputs without a file whose earlier result stays.
        partitions: The number of inputs by partition; empty without partitions.
        unsampled: The number of inputs to execute that are outside the sample of the run.
        unpublished: Why the run published nothing: its table breaks an expectation. Usually empty.
        mixtures: The libraries of which this run has used several versions, one line each.
    """

    run: int
    inputs: int
    outcomes: Mapping[str, int]
    pending: int
    executed: int
    counts: Mapping[str, int] = field(default_factory=dict)
    failures: tuple[tuple[str, str], ...] = ()
    groups: tuple[FailureGroup, ...] = ()
    results_kept: int = 0
    partitions: Mapping[str, int] = field(default_factory=dict)
    unsampled: int = 0
    unpublished: str = ""
    mixtures: tuple[str, ...] = ()

    @property
    def failed(self) -> int:
        """The number of inputs whose outcome is not ok."""
        return sum(count for kind, count in self.outcomes.items() if kind != "ok")

    @property
    def states(self) -> dict[str, int]:
        """The number of inputs by outcome, and of those that wait for one. None of them is 0."""
        waiting = {"pending": self.pending, "outside the sample": self.unsampled}
        return {**self.outcomes, **{state: count for state, count in waiting.items() if count}}

    def accepted(self, policy: FailurePolicy) -> bool:
        """Return whether the run is complete and published, and its failures are allowed."""
        return not self.unpublished and self.pending == 0 and self.has_few_failures(policy)

    def has_few_failures(self, policy: FailurePolicy) -> bool:
        """Return whether not more inputs failed than the policy allows."""
        known = 0
        if policy.known_failures == "ok":
            known = self.counts.get("quarantined", 0) + self.results_kept
        return self.failed - known <= policy.failures_allowed(self.inputs)

    def as_json(self) -> dict[str, Any]:
        """Return the summary as plain values, for scripts."""
        return {
            "run": self.run,
            "inputs": self.inputs,
            "outcomes": dict(self.outcomes),
            "pending": self.pending,
            "executed": self.executed,
            "plan": dict(self.counts),
            **({"partitions": dict(self.partitions)} if self.partitions else {}),
            **({"unsampled": self.unsampled} if self.unsampled else {}),
            **({"unpublished": self.unpublished} if self.unpublished else {}),
            **({"library_mixtures": [*self.mixtures]} if self.mixtures else {}),
        }

    def sentence(self) -> str:
        """Return the counts as one line of text."""
        parts = ["" if self.outcomes else "no outcome", list_counts(self.states)]
        return f"{self.inputs:,} inputs: {', '.join(filter(None, parts))}"


def summarise(
    ledger: Ledger, run: int, state: State | None = None, found: Failures | None = None
) -> Summary:
    """Return the summary of a run. The run may still be active, or may have been killed.

    Args:
        ledger: The dataset's ledger.
        run: The number of the run.
        state: The state of the dataset, if it has been read already.
        found: The failed inputs of the dataset, if they have been read already.
    """
    spec = read_spec(ledger, run)
    with ThreadPoolExecutor(ledger.store.threads) as pool:
        summary = pool.submit(ledger.read_summary, run)
        names = pool.submit(PlanFile(ledger, run).names)
        state = state or ledger.state()
        records = state.of_run(run).records(["input", "outcome", "attempts", "absence"])
        ended, planned = summary.result() or {}, names.result()
    outcomes = count_values(as_shown(records)["outcome"])
    outcomes.update(spec.resolved)
    if found is None and sum(outcomes.values()) > outcomes["ok"]:
        found = read_failures(state, spec)
    return Summary(
        run=run,
        inputs=spec.inputs,
        outcomes={kind: outcomes[kind] for kind in KINDS if outcomes[kind]},
        # Compare names, not numbers: each planned input must have a record under its name.
        pending=rows_of(planned, records["input"]).null_count,
        executed=pc.sum(pc.greater(records["attempts"], 0)).as_py() or 0,
        counts=spec.counts,
        failures=tuple(
            (row["input"], f"{row['outcome']}: {one_line(row['error'], row['message'])}")
            for row in (found.table[:SHOWN_NAMES].to_pylist() if found else ())
        ),
        groups=found.groups if found else (),
        results_kept=count_values(records["absence"])[MISSING] + spec.counts.get(UNREADABLE, 0),
        partitions=spec.partitions,
        unsampled=spec.unsampled,
        unpublished=ended.get("unpublished", ""),
        mixtures=tuple(_mixtures(state.of_run(run))),
    )


def _mixtures(state: State) -> Iterator[str]:
    """Yield a line for each library of which several versions made results."""
    for name, versions in versions_in(state).items():
        if len(versions) > 1:
            each = ", ".join(f"{v} ({counted(count, 'result')})" for v, count in versions.items())
            yield f"Warning: the machines of this run have several versions of {name}: {each}."


def adoption_lines(ledger: Ledger) -> list[str]:
    """Return a line for each run that kept results of earlier code which are still in use."""
    last = ledger.snapshots.last()
    adoptions = [Adoption(**record) for record in (last.adoptions if last else ())]
    return [f"run {adoption.run}: {adoption.text}" for adoption in adoptions]


def proof_lines(ledger: Ledger) -> list[str]:
    """Return a line about the last proof of each version."""
    return [f"version {proof.version}: {proof.short}" for proof in ledger.proofs.read_all()]


class Contents(NamedTuple):
    """The number of a dataset's output files, and their size in bytes."""

    outputs: int
    bytes: int


def count_contents(state: State) -> Contents:
    """Return the number and size of the output files that a state names."""
    sizes = pc.struct_field(listed_outputs(state.records(["outputs"])), "size")
    return Contents(len(sizes), pc.sum(sizes).as_py() or 0)


def count_released(ledger: Ledger, state: State) -> int:
    """Return the number of inputs with a requested retry that have not run since.

    `batchmill retry` and `verify --repair` request retries.
    """
    released = ledger.released()
    if not released:
        return 0
    records = state.of(pa.array([*released], pa.string())).records(["input", "run"])
    pairs = zip(records["input"].to_pylist(), records["run"].to_pylist(), strict=True)
    return sum(run <= released.get(name, 0) for name, run in pairs)
