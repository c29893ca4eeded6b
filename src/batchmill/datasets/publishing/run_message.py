"""The message at the end of a run: counts, causes of failures, and what to do next."""

from collections.abc import Iterator
from shlex import quote

from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.sizes import counted
from batchmill.datasets.publishing.failure_groups import group_lines
from batchmill.datasets.publishing.run_summary import Summary

RUN_AGAIN = "Run the same command again to execute the pending inputs."
# The groups at the end of a run.
SHOWN_GROUPS = 3


def failure_message(
    summary: Summary,
    dataset: str,
    policy: FailurePolicy | None = None,
    shown_groups: int = SHOWN_GROUPS,
) -> str:
    """Return a message with the counts, the groups of failed inputs, and the next commands.

    Args:
        summary: The summary of the run.
        dataset: The dataset.
        policy: If it does not accept the run, the last line says so.
        shown_groups: The number of groups to show.
    """
    dataset = quote(dataset)
    lines = [summary.sentence(), *filter(None, [summary.unpublished]), *summary.mixtures]
    lines += group_lines(summary.groups, shown_groups)
    if summary.results_kept:
        lines.append(
            "Restore the missing files. To remove such results, delete their rows from the "
            "manifest, and add --prune to the run."
        )
    if summary.failed > summary.results_kept:
        option = "" if len(summary.groups) < 2 else " --group 1"
        lines.append(f"For reasons and tracebacks: batchmill failures {dataset}{option}")
    if summary.counts.get("quarantined"):
        skipped = counted(summary.counts["quarantined"], "input was", "inputs were")
        lines.append(
            f"{skipped} skipped because of a failure in an earlier run. A run executes a failed "
            f"input if its file, the step or the params change, or after: batchmill retry {dataset}"
        )
    if summary.pending:
        lines.append(RUN_AGAIN)
    elif policy and not summary.has_few_failures(policy):
        allowed = policy.failures_allowed(summary.inputs)
        lines.append(
            f"Failed: {counted(summary.failed, 'input is', 'inputs are')} not ok, and {allowed:,} "
            "may fail (--max-failures)."
        )
        if summary.failed > summary.results_kept:
            lines += _remedies(summary, dataset)
    return "\n".join(lines)


def _remedies(summary: Summary, dataset: str) -> Iterator[str]:
    """Yield what to do next, by the cause of the failures."""
    yield "  After a fix of a file: the same command. It executes the files that have changed."
    yield "  After a fix of the step: the same command. It executes all inputs."
    done = summary.outcomes.get("ok", 0)
    if done:
        yield (
            f"    To keep {counted(done, 'ok result')} if those of a random sample stay equal, add "
            "--verify-change 300."
        )
    yield f"  After a passing fault: batchmill retry {dataset}, and then the same command."
