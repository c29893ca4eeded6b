"""Read the facts for the report of a dataset and its last run. Only the ledger is read."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.layout import TABLES
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.snapshots import Snapshot
from batchmill.core.ledger.state import State
from batchmill.core.outcome import described
from batchmill.core.planning.changed_libraries import versions_in
from batchmill.core.planning.forecast import last_large_run, written_bytes
from batchmill.core.planning.run_spec import RunSpec, read_spec
from batchmill.core.sizes import duration, readable_size
from batchmill.core.urls import absolute
from batchmill.datasets.publishing.failure_groups import read_failures
from batchmill.datasets.publishing.run_summary import (
    Contents,
    Summary,
    adoption_lines,
    count_contents,
    proof_lines,
    summarise,
)

SHOWN_FAILURES, SHOWN_RUNS, SHOWN_SLOWEST = 200, 20, 10
_RUN_COLUMNS = ("input", "outcome", "attempts", "seconds", "finished_at", "host", "size")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts that a report shows.

    Attributes:
        dataset: The dataset's path or URL, as the user wrote it.
        tables: The tables that the dataset has. A run writes them at its end.
        version: The last version. None before the first run has ended.
        spec: The settings of the run.
        summary: The summary of the run.
        contents: The number and the size of the outputs.
        executed: The records of the last run that executed many inputs. `written` is the number of
            bytes of an input's outputs.
        executed_by: The number of that run.
        failures: All records that are not ok.
        runs: The summaries of the last runs, the newest first.
        adoptions: Which results of earlier code are still in use, one line per run, and how many
            results were made again, one line per version.
        libraries: The number of results by version, by library.
    """

    dataset: str
    tables: Sequence[str]
    version: Snapshot | None
    spec: RunSpec
    summary: Summary
    contents: Contents
    executed: pa.Table
    executed_by: int
    failures: pa.Table
    runs: Sequence[Mapping[str, Any]]
    adoptions: Sequence[str] = ()
    libraries: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """The absolute path or the URL of the dataset."""
        return absolute(self.dataset)

    @property
    def name(self) -> str:
        """The dataset's name: the last part of its place."""
        return self.place.rstrip("/").rpartition("/")[2] or self.place

    @property
    def begun(self) -> float:
        """The start of the first executed input, in seconds since 1970; 0 without one."""
        began = pc.subtract(self.executed["finished_at"], self.executed["seconds"])
        return float(pc.min(began).as_py() or 0)

    @property
    def seconds(self) -> float:
        """The seconds from the start of the first executed input to the end of the last."""
        if not len(self.executed):
            return 0.0
        return max(float(pc.max(self.executed["finished_at"]).as_py()) - self.begun, 1e-3)

    @property
    def throughput(self) -> float:
        """The executed inputs per second."""
        return len(self.executed) / self.seconds if len(self.executed) else 0.0

    def numbers(self) -> Iterator[tuple[str, str]]:
        """Yield the numbers that each report shows: what is counted, and the number as text."""
        for state, count in self.summary.states.items():
            yield described(state), f"{count:,}"
        if self.contents.outputs:
            yield "output files", f"{self.contents.outputs:,}"
            yield "size of outputs", readable_size(self.contents.bytes)
        if len(self.executed):
            yield f"executed in run {self.executed_by}", f"{len(self.executed):,}"
            yield "from first start to last end", duration(self.seconds)
            yield "inputs per second", f"{self.throughput:,.1f}"

    def slowest(self) -> list[dict[str, Any]]:
        """Return the inputs that took longest, the longest first."""
        order = [("seconds", "descending"), ("input", "ascending")]
        first = pc.select_k_unstable(self.executed, SHOWN_SLOWEST, order)
        return list(self.executed.take(first).to_pylist())


def gather(ledger: Ledger, run: int, dataset: str) -> Facts:
    """Read the facts after or during a run. `dataset` is the path or URL that the user wrote."""
    spec = read_spec(ledger, run)
    state = ledger.state()
    failures = read_failures(state, spec)
    executed, executed_by = _last_executed(state)
    with ThreadPoolExecutor(ledger.store.threads) as pool:
        ended = pool.map(ledger.read_summary, reversed(ledger.runs()[-SHOWN_RUNS:]))
        names = pool.submit(ledger.store.names, "")
        version = pool.submit(ledger.snapshots.last_version)
        summary = pool.submit(summarise, ledger, run, state, failures)
        adoptions = pool.submit(adoption_lines, ledger)
        proofs = pool.submit(proof_lines, ledger)
    return Facts(
        dataset=dataset,
        tables=sorted({*TABLES} & {*names.result()}),
        version=version.result(),
        spec=spec,
        summary=summary.result(),
        contents=count_contents(state),
        executed=executed,
        executed_by=executed_by,
        failures=failures.table,
        runs=list(filter(None, ended)),
        adoptions=[*adoptions.result(), *proofs.result()],
        libraries=versions_in(state),
    )


def _last_executed(state: State) -> tuple[pa.Table, int]:
    """Return the records of the last run that executed many inputs, and the number of the run."""
    state = state.select(pc.greater(state.table["attempts"], 0))
    last = last_large_run(state.table["run"].to_numpy())
    records = state.of_run(last).records([*_RUN_COLUMNS, "outputs"])
    # A failed input may keep the outputs of an earlier run.
    is_ok = pc.equal(records["outcome"], "ok").cast(pa.int64())
    written = pc.multiply(pa.array(written_bytes(records["outputs"])), is_ok)
    return records.select(list(_RUN_COLUMNS)).append_column("written", written), last
