"""Compares a dataset with its ledger, and repairs the differences."""

from collections.abc import Iterator, Sequence
from shlex import quote
from typing import Literal, NamedTuple

import numpy as np
import pyarrow.compute as pc

from batchmill.core.layout import (
    LEDGER_FOLDER,
    LEDGER_NAMES,
    METADATA,
    PLAN,
    PLAN_ROWS,
    RUNS,
    SUMMARY,
    TABLES,
    TOP_NAMES,
)
from batchmill.core.ledger.lease import check_free, lease
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.recorded_outputs import file_names, listed_outputs
from batchmill.core.ledger.state import State
from batchmill.core.planning.plan_file import PlanFile
from batchmill.core.storage import Store, if_exists, in_threads
from batchmill.datasets.maintenance.cleanup import unreferenced
from batchmill.datasets.maintenance.leakage import (
    Finding,
    compare_with_source,
    find_duplicates,
    find_leaks,
)
from batchmill.errors import LedgerError, OptionError, StoreError


class Difference(NamedTuple):
    """One file that differs from the ledger. If it is an output, `input` is the name of its input.

    A "withdrawn" output is missing or changed, and no run makes it again, because the manifest does
    not list its input. A "leak" is in a table: a group in several partitions, or an input in the
    wrong partition. An "unpublished" table is missing or old because the last run published
    nothing. Two kinds are only warnings. A "duplicate" has inputs with the same content in
    different partitions. "unchecked" is a dataset whose partitions were not compared with the
    dataset it was made from.
    """

    kind: Literal[
        "missing",
        "changed",
        "withdrawn",
        "unpublished",
        "unreferenced",
        "leak",
        "duplicate",
        "unchecked",
    ]
    path: str
    input: str = ""
    message: str = ""

    @property
    def is_warning(self) -> bool:
        """True if the dataset still agrees with its ledger."""
        return self.kind in ("duplicate", "unchecked")

    @property
    def is_repairable(self) -> bool:
        """True if a repair changes something. Otherwise only a run can rebuild the table."""
        is_plan = self.kind == "changed" and self.path.startswith(f"{RUNS}/")
        is_output = bool(self.input) and self.kind != "withdrawn"
        return is_output or self.kind == "unreferenced" or is_plan


def verify(ledger: Ledger, *, hash_files: bool = False) -> Iterator[Difference]:
    """Yield the differences between a dataset's files and its ledger, and damaged plans.

    The sizes of all outputs are compared. With `hash_files`, every output is read, and the contents
    are compared too. If a plan or a summary is damaged, leaks and duplicates are not searched.
    """
    store, state = ledger.store, ledger.state()
    listed = state.listed()
    yield from _compare_outputs(store, listed, hash_files=hash_files)
    withdrawn = state.not_of(listed.names)
    for found in _compare_outputs(store, withdrawn, hash_files=hash_files):
        message = f"{found.message or 'is missing'}; the manifest does not list its input"
        yield found._replace(kind="withdrawn", message=message)
    last = ledger.last_known_run()
    if last and last not in ledger.runs():
        yield Difference("missing", ledger.run_folder(last), message="Run the job again")
    yield from _compare_tables(ledger, state, last)
    top = store.names("")
    strays = [name for name in top if name not in TOP_NAMES]
    strays += [
        f"{LEDGER_FOLDER}/{name}" for name in store.names(LEDGER_FOLDER) if name not in LEDGER_NAMES
    ]
    for name in [*strays, *unreferenced(ledger)]:
        yield Difference("unreferenced", name)
    damaged = list(_damaged_files(ledger))
    for name in damaged:
        message = "differs from what the run wrote. Run verify --repair, then the job again"
        yield Difference("changed", name, message=message)
    if damaged:
        return  # The partitions depend on the last plan and its summary.
    findings = [Finding("leak", message) for message in find_leaks(ledger)]
    findings += compare_with_source(ledger)  # It may find the same leak.
    findings += [Finding("duplicate", message) for message in find_duplicates(ledger)]
    for kind, message in dict.fromkeys(findings):
        yield Difference(kind, METADATA, message=message)


def _compare_tables(ledger: Ledger, state: State, last: int) -> Iterator[Difference]:
    """Yield the tables that are missing, or that are not those of the last version."""
    store, version = ledger.store, ledger.snapshots.last_version()
    snapshot = ledger.snapshots.last()
    tables = snapshot.tables if snapshot else {}
    expected = {name: tables.get(name, {}).get("content") for name in TABLES if last}
    if version:
        expected[ledger.snapshots.file_name(version.number, "table")] = version.table
    for name, content in expected.items():
        now = if_exists(store.content_of, name)
        if now is None and snapshot and not snapshot.shown:
            message = f"run {snapshot.number} published nothing"
            yield Difference("unpublished", name, message=message)
        elif now is None:
            yield Difference("missing", name, message="the next run writes it")
        elif content is None:
            message = f"run {last} was killed before it had recorded it. Run the job again"
            yield Difference("changed", name, message=message)
        elif now != content:
            message = "differs from the published table. Run the job again"
            yield Difference("changed", name, message=message)
    if version and snapshot and not snapshot.shown:
        message = f"is of run {version.number}: run {snapshot.number} published nothing"
        yield Difference("unpublished", METADATA, message=message)
    elif version and not state.file:
        message = f"is of run {version.number}, and older than the ledger. Run the job again"
        yield Difference("changed", METADATA, message=message)


def verify_version(
    ledger: Ledger, wanted: int | str, *, hash_files: bool = False
) -> Iterator[Difference]:
    """Yield the differences between the files of a version and what its run published.

    Args:
        ledger: The ledger.
        wanted: The number or name of the version.
        hash_files: Also compare the contents of all outputs.

    Raises:
        OptionError: There is no such version.
    """
    version = ledger.snapshots.find(wanted)
    table = ledger.snapshots.file_name(version.number, "table")
    content = if_exists(ledger.store.content_of, table)
    if content is None:
        yield Difference("missing", table)
    elif content != version.table:
        yield Difference("changed", table, message="differs from the published table")
    # An input that the manifest did not list has a record, but no row in the version.
    state = ledger.files.read_state(version).listed()
    yield from _compare_outputs(ledger.store, state, hash_files=hash_files)


def _compare_outputs(store: Store, state: State, *, hash_files: bool) -> Iterator[Difference]:
    """Yield the outputs of a state that are missing or changed."""
    records = state.records(["input", "outputs"])
    files, names = listed_outputs(records), file_names(records).to_pylist()
    counts = pc.list_value_length(records["outputs"]).fill_null(0)
    owners = np.repeat(np.arange(len(records)), counts.to_numpy())
    recorded, now = pc.struct_field(files, "size").to_pylist(), [*store.sizes(names)]

    def compare(number: int) -> Difference | None:
        owner, name = records["input"][owners[number]].as_py(), names[number]
        size, expected = now[number], recorded[number]
        if size is None:
            return Difference("missing", name, owner)
        if size != expected:
            message = f"has {size:,} bytes; the ledger has {expected:,}"
            return Difference("changed", name, owner, message)
        try:
            if store.content_of(name) != files[number]["content"].as_py():
                return Difference("changed", name, owner, "same size, different content")
        except StoreError as error:
            return Difference("changed", name, owner, f"cannot be read: {error.reason}")
        return None

    # Only these are Python objects, because a dataset may have millions of outputs.
    chosen = [n for n in range(len(names)) if hash_files or recorded[n] != now[n]]
    yield from filter(None, in_threads(compare, chosen, store.threads))


def _damaged_files(ledger: Ledger) -> Iterator[str]:
    """Yield the names of damaged plans and summaries."""
    for run in ledger.runs():
        name = PlanFile(ledger, run).damaged_file()
        if name:
            yield name
        try:
            ledger.read_summary(run)
        except LedgerError:
            yield ledger.summary_name(run)


def examine(
    ledger: Ledger,
    *,
    hash_files: bool = False,
    repair: bool = False,
    version: int | str | None = None,
) -> list[Difference]:
    """Return the differences between a dataset and its ledger. With `repair`, also repair them.

    Args:
        ledger: The ledger.
        hash_files: Also compare the contents of all outputs.
        repair: Repair the differences.
        version: Examine only the files of this version. It cannot be repaired.

    Raises:
        OptionError: There is no such version, or it should be repaired.
        LedgerError: Another run is using the dataset.
    """
    if version is not None:
        if repair:
            raise OptionError(
                "--repair and --version cannot be combined: a run can make the files of the last "
                "version again, but not those of an earlier one."
            )
        return list(verify_version(ledger, version, hash_files=hash_files))
    check_free(ledger)
    if not repair:
        return list(verify(ledger, hash_files=hash_files))
    with lease(ledger) as held:
        differences = list(verify(ledger, hash_files=hash_files))
        repair_differences(ledger, differences)
        held.clean_end = held.clean
    return differences


def advice(dataset: str, differences: Sequence[Difference], *, repaired: bool) -> str:
    """Return what to do about differences, in one or two sentences.

    Args:
        dataset: The dataset, as the user wrote it.
        differences: The differences that were found. At least one is no warning.
        repaired: They were repaired.
    """
    dataset = quote(dataset)
    kinds = {difference.kind for difference in differences if not difference.is_warning}
    sentences = []
    if any(difference.is_repairable for difference in differences):
        if not repaired:
            sentences.append(f"To repair it: batchmill verify {dataset} --repair.")
        elif "unreferenced" in kinds:
            sentences.append("Unreferenced files were removed.")
    if "unpublished" in kinds:
        sentences.append(f"Why nothing was published: batchmill status {dataset}")
    elif kinds - {"unreferenced", "withdrawn"}:
        sentences.append("Run the job again to rebuild missing or changed files.")
    if "withdrawn" in kinds:
        sentences.append("To remove the results of withdrawn inputs, run the job with --prune.")
    return " ".join(sentences)


def repair_differences(ledger: Ledger, differences: list[Difference]) -> None:
    """Schedule inputs with missing or changed outputs again, and remove unreferenced files.

    Also remove damaged plans and summaries. Their run then counts as killed.
    """
    repairable = (difference for difference in differences if difference.is_repairable)
    inputs = sorted({difference.input for difference in repairable if difference.input})
    if inputs:
        ledger.release(inputs)
    for difference in differences:
        if difference.kind == "unreferenced":
            ledger.store.remove(difference.path)
        folder, _, _ = difference.path.rpartition("/")
        if difference.kind == "changed" and folder.startswith(f"{RUNS}/"):
            for name in (SUMMARY, PLAN, PLAN_ROWS):
                ledger.store.delete(f"{folder}/{name}")
