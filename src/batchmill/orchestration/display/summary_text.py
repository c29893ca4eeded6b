"""The summary page of a run in the Prefect UI, as Markdown."""

from collections.abc import Iterator

from batchmill.publishing.report import Facts, Report
from batchmill.publishing.report.charts import as_data_url
from batchmill.sizes import duration, readable_size

_SHOWN_GROUPS = 20


def summary_text(report: Report) -> str:
    """Return the page: counts, throughput, failures by cause, charts and the slowest inputs."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    facts = report.facts
    summary = facts.summary
    yield f"# {summary.sentence()}\n"
    yield f"Dataset {code(facts.dataset)}, step {code(facts.step)}, run {summary.run}.\n"
    for line in facts.adoptions:
        yield f"{line[0].upper()}{line[1:]}\n"
    yield "| | |\n|---|---|"
    for kind, count in summary.outcomes.items():
        yield f"| {kind} | {count:,} |"
    if summary.pending:
        yield f"| pending | {summary.pending:,} |"
    if summary.unsampled:
        yield f"| outside the sample | {summary.unsampled:,} |"
    for name, count in summary.partitions.items():
        yield f"| in partition {name} | {count:,} |"
    if facts.contents.outputs:
        size = readable_size(facts.contents.bytes)
        yield f"| output files | {facts.contents.outputs:,}, {size} |"
    if len(facts.executed):
        yield f"| executed in run {facts.executed_by} | {len(facts.executed):,} |"
        yield f"| time from first to last input | {duration(facts.seconds)} |"
        yield f"| throughput | {facts.throughput:,.1f} inputs/s |"
    if len(facts.failures):
        yield from _failures(facts)
    if len(facts.executed):
        yield from _executed(report)
    yield f"\nThe file {code('report.html')} in the dataset also has tracebacks and printed output."


def _failures(facts: Facts) -> Iterator[str]:
    yield "\n## Failures\n"
    yield "| reason | inputs | first inputs |"
    yield "|---|---:|---|"
    for group in facts.groups[:_SHOWN_GROUPS]:
        reason = f"{group.outcome}: {code(group.reason)}"
        names = ", ".join(map(code, group.examples))
        yield f"| {reason} | {group.inputs:,} | {names} |"
    if len(facts.groups) > _SHOWN_GROUPS:
        yield f"\n... and {len(facts.groups) - _SHOWN_GROUPS:,} more groups."
    for group in facts.groups[:1]:
        if group.command:
            yield f"\nTo see the first error on your machine:\n\n{code(group.command)}"


def _executed(report: Report) -> Iterator[str]:
    yield "\n## Charts\n"
    for label, svg in report.pictures:
        yield f"![{label}]({as_data_url(svg)})\n"
    yield "## The slowest inputs\n"
    yield "| input | outcome | time | size |"
    yield "|---|---|---:|---:|"
    for record in report.facts.slowest():
        size = readable_size(record["size"]) if record["size"] >= 0 else ""
        took = duration(record["seconds"])
        yield f"| {code(record['input'])} | {record['outcome']} | {took} | {size} |"


def code(text: str) -> str:
    r"""Return text as Markdown code that is also safe in a table.

    >>> code("a|b`<i>")
    "`a\\|b'<i>`"
    """
    line = " ".join(text.split()).replace("`", "'").replace("|", "\\|")
    return f"`{line}`" if line else ""
