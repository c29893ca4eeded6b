"""Run all benchmarks of the page one after the other, and keep the tables that they print.

    python -m benchmarks.sections [--only start-up services]

Writes the tables to build/bench/sections.json, which `benchmarks.page` puts into the page with the
comparison of tools. On two cores, all together take about 15 minutes. A benchmark that cannot run
here, such as one for a GPU, has the reason instead of a table.
"""

import argparse
import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from typing import Any, NamedTuple

from benchmarks import machine
from benchmarks.compare import say
from benchmarks.peers.environments import ROOT

SECTIONS = ROOT / "build" / "bench" / "sections.json"
# A benchmark that takes longer is left out.
LIMIT_SECONDS = 900


class Section(NamedTuple):
    """A part of the page.

    Attributes:
        title: Its heading.
        text: The paragraph before the tables: what was measured.
        command: The module in `benchmarks`, and its options.
    """

    title: str
    text: str
    command: str

    @property
    def key(self) -> str:
        """The name of the section for `--only`."""
        return self.title.lower().replace(" ", "-")


ALL = (
    Section(
        "Start-up",
        "`batchmill run` over four words, from the command to its end. The last row of the first "
        "table is `batchmill.run` in an interactive Python that has done such a run before. The "
        "second table has the processes of one run without a Prefect server.",
        "startup --rounds 1",
    ),
    Section(
        "Overhead per input",
        "The first table compares the isolated DataLoader with a plain one, the second the whole "
        "engine, from a shard's plan to its last ledger part. Both use two workers. The times are "
        "microseconds per input. In the second table, the inputs share the start and the end of "
        "the shard, which take up to 0.3 s. The third table compares outputs in files and packs.",
        "overhead --rounds 3",
    ),
    Section(
        "Outputs in files and in packs",
        "A whole command over words, with one output file each.",
        "outputs --inputs 100000",
    ),
    Section(
        "Nothing to do",
        "All inputs are unchanged, and no Prefect server runs.",
        "unchanged --inputs 100000 --rounds 1",
    ),
    Section(
        "Memory",
        "Each input is a small file that gives one row. The memory is the peak of the largest "
        "process that a command starts. The needed memory is without the pages of [temporary "
        "files](../decisions/0035-large-tables.md), which the kernel can drop at any time.",
        "scale --inputs 100000 1000000",
    ),
    Section(
        "More cores and machines",
        "The loop alone. The step keeps a core busy for 20 ms. The second table is a simulated Ray "
        "cluster with one core in each node.",
        "scaling --rounds 1",
    ),
    Section("Forecasts", "`--sample 40` forecasts the time of 360 other inputs.", "forecast"),
    Section(
        "Buckets",
        "1,200 objects of 20 kB are fetched, copied and stored again. The S3 server is on the same "
        "cores, behind a line with 30 ms of latency. The time of batchmill includes the start of "
        "the workers and the commits. The best of three rounds.",
        "buckets --rounds 3",
    ),
    Section(
        "Services",
        "An [async step](../how-to/async-steps.md) requests an answer for each of 5,000 small "
        "files from a server of the same machine, which answers after 0.2 s. The time begins with "
        "the first request and ends with the last answer. The bare loop is one process without "
        "records, retries or files. The first run of batchmill also creates Prefect's database.",
        "services",
    ),
    Section(
        "Exports",
        "Samples of 10 kB: random bytes, a label and an identifier. An epoch has two DataLoader "
        "workers, batches of 64 and a random order. The memory is that of all processes.",
        "export --rounds 1",
    ),
    Section(
        "Models",
        "`batchmill infer` beside a bare loop: a torch DataLoader with the same number of workers, "
        "the same network, and a table at the end. `model alone` is the network with a batch that "
        "stays on the device. Inputs per second are counted after the first tenth of the inputs.",
        "inference",
    ),
    Section(
        "Models on a GPU",
        "As above, with a network of the size of ResNet-18 and one ten times heavier.",
        "gpu",
    ),
)


def measure(section: Section) -> dict[str, Any]:
    """Run a benchmark. Return its tables as Markdown, or the reason why it has no table."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", *f"benchmarks.{section.command}".split()]
    found = {"title": section.title, "text": section.text, "command": section.command}
    try:
        ran = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return found | {"trouble": f"took more than {LIMIT_SECONDS} s"}
    seconds = time.perf_counter() - begun
    say(f"{section.title}: {seconds:.0f} s")
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or ["failed"])[-1]
        return found | {"trouble": last.rpartition(": error: ")[2]}
    tables = tables_in(ran.stdout)
    return found | ({"tables": tables} if tables else {"trouble": "printed no table"})


def tables_in(printed: str) -> str:
    r"""Return the Markdown tables of a text, with an empty line between two tables.

    >>> print(tables_in("2 rounds\n| a |\n|---|\n| 1 |\n\nnote\n| b |\n|---|\n"))
    | a |
    |---|
    | 1 |
    <BLANKLINE>
    | b |
    |---|
    """
    tables: list[list[str]] = [[]]
    for line in printed.splitlines():
        if line.startswith("|"):
            tables[-1].append(line)
        elif tables[-1]:
            tables.append([])
    return "\n\n".join("\n".join(lines) for lines in tables if lines)


def main() -> None:
    """Run the benchmarks. The tables are written after each benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[one.key for one in ALL])
    options = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short=7", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    found: dict[str, Any] = {
        "made": datetime.now(UTC).date().isoformat(),
        "commit": commit.stdout.strip(),
        "machine": machine.describe(),
        "sections": [],
    }
    SECTIONS.parent.mkdir(parents=True, exist_ok=True)
    for section in ALL:
        if not options.only or section.key in options.only:
            found["sections"].append(measure(section))
            SECTIONS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
