"""Turn the figures of `benchmarks.compare` and `benchmarks.sections` into the page and a picture.

python -m benchmarks.page [--print]

Replaces the text between two comments in docs/explanation/benchmarks.md, and the picture
docs/explanation/benchmarks.svg. `--print` prints the tables and writes nothing.
"""

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.compare import FIGURES
from benchmarks.peers.contenders import BARE, OURS
from benchmarks.peers.environments import ROOT
from benchmarks.sections import SECTIONS

PAGE = ROOT / "docs" / "explanation" / "benchmarks.md"
PICTURE = ROOT / "docs" / "explanation" / "benchmarks.svg"
BEGIN = "<!-- benchmarks.page: start of the generated part -->"
END = "<!-- benchmarks.page: end of the generated part -->"
# Commands whose speeds differ by a smaller factor count as equally fast.
ALIKE = 1.05
COLUMNS = """All tools run the same function over the same files and write the same rows.
[benchmarks/peers](../../benchmarks/peers) has the work and a script per tool. Each tool has its own
environment with pinned versions. batchmill's time includes an outcome per file, a hash of each
output and a report.

| column | meaning |
|---|---|
| whole command | seconds until the command has ended: the median of the rounds, the shortest \
and the longest |
| files/s | inputs per second of the whole command |
| loop alone | from the start of the first file to the end of the last one; of other tools: the \
call that does the work, including the start of their workers |
| of bare | the speed of batchmill's loop, divided by that of the bare DataLoader. It is left out \
if the rounds of the bare DataLoader differ by more than a fifth |"""
WHAT = {
    "words": "{inputs:,} text files with one word each; one row per file, no output files",
    "clips": "{inputs:,} FLAC recordings of {minutes} min, cut into {files:,} WAV clips of 5 s",
    "spectrograms": "{inputs:,} FLAC recordings of {minutes} min; {files:,} log-mel spectrograms "
    "of 5 s each",
}


# Other ratios would say more about the machine than about batchmill.
STEADY = 1.2


class Result(NamedTuple):
    """One contender at one kind of work: medians in seconds, or the reason for a failure."""

    name: str
    title: str
    version: str
    inputs: int
    rounds: int
    seconds: float | None
    loop: float | None
    trouble: str | None
    spread: str
    is_steady: bool

    @property
    def files_per_second(self) -> float | None:
        """Inputs per second of the whole command."""
        return self.inputs / self.seconds if self.seconds else None


def results_of(figures: dict[str, Any], kind: str) -> list[Result]:
    """Return the results of one kind of work, fastest first and failed ones last."""
    found = []
    measured = figures["kinds"][kind]["contenders"]
    for name, title in figures["titles"].items():
        mine = measured.get(name, {"inputs": 0, "runs": []})
        trouble = figures["troubles"].get(name) or mine.get("trouble")
        runs = [] if trouble else mine["runs"]
        loops = [run["loop"] for run in runs if run["loop"] is not None]
        found.append(
            Result(
                name,
                title,
                figures["versions"][name],
                mine["inputs"],
                len(runs),
                statistics.median(run["seconds"] for run in runs) if runs else None,
                statistics.median(loops) if loops else None,
                trouble,
                _spread([run["seconds"] for run in runs]),
                bool(loops) and max(loops) <= STEADY * min(loops),
            )
        )
    return sorted(found, key=lambda one: -(one.files_per_second or 0))


def _spread(seconds: list[float]) -> str:
    return f" ({_number(min(seconds))} to {_number(max(seconds))})" if len(seconds) > 1 else ""


def of_bare(results: list[Result], one: Result) -> float | None:
    """Return the speed of a loop divided by that of the bare DataLoader over the same files."""
    bare = next((other for other in results if other.name == BARE), None)
    if not bare or not bare.loop or not one.loop or one.inputs != bare.inputs:
        return None
    if not bare.is_steady:
        return None
    return bare.loop / one.loop


def render(figures: dict[str, Any], measured: dict[str, Any]) -> str:
    """Return the text between the two comments, as Markdown.

    Args:
        figures: The figures of `benchmarks.compare`.
        measured: The tables of `benchmarks.sections`.
    """
    lines = ["## Other tools", "", COLUMNS, "", *_setting(figures), ""]
    lines += [f"![Files per second, by kind of work and tool]({PICTURE.name})", ""]
    lines += [*_tools(figures)]
    found = measured["machine"]
    lines.append(
        f"The tables below were measured on {measured['made']} with the commit "
        f"`{measured['commit']}` on {found['processor']}, {found['cores']} cores, "
        f"{found['memory_gib']} GiB of memory, {found['system']}, Python {found['python']}.\n"
    )
    for one in measured["sections"]:
        tables = one.get("tables") or f"Not measured on this machine: {one['trouble']}"
        command = f"Command: `python -m benchmarks.{one['command']}`."
        lines += [f"## {one['title']}", "", one["text"], "", tables, "", command, ""]
    return "\n".join(lines)


def _tools(figures: dict[str, Any]) -> Iterator[str]:
    """Yield the tables and sentences of the comparison of tools."""
    for kind, measured in figures["kinds"].items():
        results = results_of(figures, kind)
        what = WHAT[kind].format(**measured, minutes=f"{figures['recording_seconds'] / 60:g}")
        yield from [f"### {kind.capitalize()}", "", f"{what}.", "", *_table(results), ""]
        yield from [*_verdict(results), ""]


def _setting(figures: dict[str, Any]) -> Iterator[str]:
    found = figures["machine"]
    yield (
        f"Measured on {figures['made']} with `{figures['command']}`, {figures['workers']} workers "
        f"each: {found['processor']}, {found['cores']} cores, {found['memory_gib']} GiB of memory, "
        f"{found['system']}, Python {found['python']}. "
        f"The load average was {found['load']:g} at the start."
    )


def _table(results: list[Result]) -> Iterator[str]:
    yield "| | version | rounds | whole command, s | files/s | loop alone, s | of bare |"
    yield "|---|---|---|---|---|---|---|"
    most = max(one.inputs for one in results)
    for one in results:
        title = f"**{one.title}**" if one.name == OURS else one.title
        if one.trouble:
            yield f"| {title} | {one.version} | | {_escaped(one.trouble)} | | | |"
            continue
        # The loops of other tools include the start of their workers.
        share = of_bare(results, one) if one.name in (OURS, BARE) else None
        fewer = f" ({one.inputs:,} files)" if one.inputs < most else ""
        cells = [
            title + fewer,
            one.version,
            str(one.rounds),
            _number(one.seconds) + one.spread,
            _number(one.files_per_second),
            _number(one.loop),
            f"{share:.2f}" if share else "",
        ]
        yield f"| {' | '.join(cells)} |"


def _verdict(results: list[Result]) -> Iterator[str]:
    """Yield sentences about the contenders that are faster or slower than batchmill."""
    ours = next((one for one in results if one.name == OURS), None)
    if not ours or not ours.files_per_second:
        yield "batchmill has no result."
        return
    faster, alike, slower = [], [], []
    for one in results:
        if one.name == OURS or not one.files_per_second or one.inputs != ours.inputs:
            continue  # With fewer files, start-up is a larger share of the time.
        ratio = one.files_per_second / ours.files_per_second
        if ratio > ALIKE:
            faster.append(f"{one.title} ({ratio:.1f} times)")
        elif ratio < 1 / ALIKE:
            slower.append(f"{one.title} ({1 / ratio:.1f} times)")
        else:
            alike.append(one.title)
    for those, text in (
        (faster, "Faster than batchmill (by the factor in brackets): "),
        (alike, "Equally fast, within 5 %: "),
        (slower, "Slower than batchmill: "),
    ):
        if those:
            yield f"{text}{', '.join(those)}."
    share = of_bare(results, ours)
    if share:
        yield f"The loop of batchmill has {share * 100:.0f} % of the bare DataLoader's speed."
    if ours.seconds and ours.loop:
        yield (
            f"Start-up, tables and report take {_number(ours.seconds - ours.loop)} of its "
            f"{_number(ours.seconds)} s."
        )


def draw(figures: dict[str, Any], path: Path) -> None:
    """Write a picture with the files per second of each contender, by kind of work."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    kinds = list(figures["kinds"])
    # Text is not converted to paths, and the same figures give the same file.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "batchmill", "font.size": 9.0}):
        figure = Figure(figsize=(7.5, 2.6 * len(kinds)), layout="constrained")
        for axes, kind in zip(figure.subplots(len(kinds), squeeze=False)[:, 0], kinds, strict=True):
            shown = [one for one in results_of(figures, kind) if one.files_per_second][::-1]
            names = [one.title.replace("`", "") for one in shown]
            speeds = [one.files_per_second or 0.0 for one in shown]
            colours = ["#D55E00" if one.name == OURS else "#0072B2" for one in shown]
            bars = axes.barh(names, speeds, color=colours)
            axes.bar_label(bars, [_number(speed) for speed in speeds], padding=3)
            axes.set_title(f"{kind}: files/s, whole command", loc="left")
            axes.spines[["top", "right"]].set_visible(False)
            axes.margins(x=0.12)
        figure.savefig(path, format="svg", metadata={"Date": None}, facecolor="white")


def put_into(page: str, section: str) -> str:
    """Replace the text between the two comments of a page.

    Raises ValueError if a comment is missing.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page must have the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{section.strip()}\n\n{END}{after}"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    """Write the page and the picture, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--print", action="store_true", help="write nothing")
    parser.add_argument("--figures", type=Path, default=FIGURES)
    parser.add_argument("--sections", type=Path, default=SECTIONS)
    options = parser.parse_args()
    figures = json.loads(options.figures.read_text())
    section = render(figures, json.loads(options.sections.read_text()))
    if options.print:
        print(section)
        return
    draw(figures, PICTURE)
    PAGE.write_text(put_into(PAGE.read_text(), section))


if __name__ == "__main__":
    main()
