"""Print the plan, the progress and the result of `run` and `infer`.

The progress is a bar on a terminal, and plain lines elsewhere.
"""

import sys
import threading
import time
from contextlib import AbstractContextManager, ExitStack, nullcontext, redirect_stdout
from dataclasses import replace
from shlex import quote

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from batchmill.api.jobs.request import JobRequest
from batchmill.api.jobs.run_job import EndedRun, JobDisplay, run_job
from batchmill.cli.console import console, print_json
from batchmill.cli.plan import partition_lines, partitions_as_json
from batchmill.cli.status import executed_text
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.options.job_options import JobSettings, RunOptions
from batchmill.core.planning.decisions import MEANINGS
from batchmill.core.planning.prepare import Prepared
from batchmill.core.security.credentials import access_to
from batchmill.core.sizes import counted, list_counts
from batchmill.datasets.maintenance.leakage import find_duplicates
from batchmill.datasets.publishing.run_message import failure_message
from batchmill.errors import RunError
from batchmill.runs.progress import STARTING, RunWatcher, following, poll, progress_line, time_left

_LINE_SECONDS = 10.0


class RunConsole(JobDisplay):
    """Prints the plan of a run and its progress to standard error."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._console = console(stderr=True, quiet=is_quiet)

    def show_plan(self, prepared: Prepared) -> None:
        """Print the number of inputs to execute, and the reason if all are executed again."""
        counts = prepared.plan.counts
        lines = [_to_do(prepared)]
        lines += [f"  {word}: {what}." for word, what in MEANINGS.items() if counts.get(word)]
        self.say(*lines, *prepared.change_lines(), *partition_lines(prepared))

    def say(self, *lines: str) -> None:
        """Print lines."""
        for line in lines:
            self._console.print(line)

    def show_change_check(self, prepared: Prepared) -> None:
        """Print whether the outputs are equal. If they are kept, print the new plan."""
        check = prepared.change_check
        self.say(*(check.lines() if check else []))
        if check and check.is_equal:
            self.say(_to_do(prepared), *prepared.change_lines())

    def follow(self, prepared: Prepared) -> AbstractContextManager[None]:
        """Show progress while the block runs."""
        if self._console.quiet or not len(prepared.plan.pending):
            return nullcontext()
        return showing_progress(prepared.ledger, self._console)


def run_and_show(
    request: JobRequest | str, *, run_options: RunOptions | None = None, json: bool, verbose: bool
) -> None:
    """Run a job, or the saved job of this name, and print the result.

    Raises the errors of `run_job`, and RunError if more inputs failed than allowed.
    """
    display = RunConsole(is_quiet=json)
    # Ray prints to standard output, but only the result may be printed there.
    with ExitStack() as held, redirect_stdout(sys.stderr):
        if isinstance(request, str):
            request = _saved_request(request, run_options or RunOptions(), held)
        request = replace(request, verbose=verbose)
        ended = run_job(request, display)
    if json:
        document = partitions_as_json(ended.prepared) | ended.summary.as_json()
        if ended.forecast:
            document["forecast"] = ended.forecast.as_json()
        if ended.prepared.change_check:
            document["change_check"] = ended.prepared.change_check.as_json()
        print_json(document)
    else:
        with access_to(ended.access):
            _show(ended)
        withdrawn = ended.prepared.plan.counts["withdrawn"]
        if withdrawn and request.options.run.prune:
            gone = counted(withdrawn, "input that is", "inputs that are")
            was = "was" if withdrawn == 1 else "were"
            console().print(f"{gone} no longer in the manifest {was} removed from the dataset.")
    if ended.error:
        # The first line of a message with several lines has already been printed.
        first, _, rest = str(ended.error).partition("\n")
        raise RunError(rest or first) from ended.error


def _saved_request(name: str, run_options: RunOptions, held: ExitStack) -> JobRequest:
    """Return the request of a saved job. The Prefect API stays open until `held` is closed."""
    from batchmill.blocks.saved_job import as_job
    from batchmill.orchestration.server.api import shared_api

    held.enter_context(shared_api())
    saved = as_job(name).parameters()
    groups = {group: saved.pop(group) for group in JobSettings().parameters() if group in saved}
    return JobRequest(**saved, options=JobSettings(**groups, run=run_options))


def _to_do(prepared: Prepared) -> str:
    pending = len(prepared.plan.pending)
    listed = list_counts(prepared.plan.counts)
    too_young = len(prepared.manifest.too_young)
    skipped = f" {too_young:,} files skipped: younger than --min-age." if too_young else ""
    sample = "" if prepared.plan.left is None else ", as a sample"
    return f"{len(prepared.manifest):,} inputs ({listed}); {pending:,} to execute{sample}.{skipped}"


def _show(ended: EndedRun) -> None:
    out, prepared, summary = console(), ended.prepared, ended.summary
    dataset = prepared.job.output
    out.print(f"{summary.sentence()} ({executed_text(summary, prepared.ledger)})")
    out.print(f"Dataset: {dataset}")
    if ended.note:
        out.print(ended.note)
    if ended.forecast:
        out.print(*ended.forecast.lines(), sep="\n")
        out.print("To execute them, run the same command without --sample.")
    if not summary.failed:
        out.print(*summary.mixtures, sep="\n", end="\n" if summary.mixtures else "")
    elif not ended.error:
        out.print(failure_message(summary, dataset).partition("\n")[2])
    # The search takes a while, and a run that added nothing has no new duplicates.
    version = prepared.ledger.snapshots.last_version()
    is_new = version is not None and version.number == summary.run
    may_repeat = summary.partitions and is_new
    duplicates = sum(1 for _ in find_duplicates(prepared.ledger)) if may_repeat else 0
    if duplicates:
        out.print(
            "Inputs with the same content are in different partitions (contents: "
            f"{duplicates:,}). To list them: batchmill verify {quote(dataset)}"
        )


def showing_progress(ledger: Ledger, console: Console) -> AbstractContextManager[None]:
    """Show the progress of the run that the block starts, until the block ends."""
    follow = _follow_with_bar if console.is_terminal else _follow_with_lines
    return following(ledger, lambda watcher, stop: follow(watcher, console, stop))


def _follow_with_bar(watcher: RunWatcher, console: Console, stop: threading.Event) -> None:
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        console=console,
        transient=True,
    )
    with bar:
        shown = bar.add_task(STARTING, total=None, rate="", left="")
        for seen, rate, _ in poll(watcher, stop):
            if seen:
                failed = f"[red]{seen.failed:,} failed[/red]" if seen.failed else "0 failed"
                bar.update(
                    shown,
                    description=f"inputs, {failed}",
                    total=seen.total,
                    completed=seen.done,
                    rate=f"{rate:.1f} inputs/s",
                    left=time_left(seen, rate),
                )


def _follow_with_lines(watcher: RunWatcher, console: Console, stop: threading.Event) -> None:
    console.print(f"{STARTING} ...")
    next_line = 0.0
    for seen, rate, ended in poll(watcher, stop):
        if seen and (ended or time.monotonic() >= next_line):
            console.print(progress_line(seen, rate, ended=ended))
            next_line = time.monotonic() + _LINE_SECONDS
