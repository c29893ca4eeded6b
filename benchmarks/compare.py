"""Compare batchmill with other tools: the same work over the same files, as whole commands.

python -m benchmarks.compare [--full] [--kinds words] [--contenders batchmill ray_data]

1. Creates the inputs in a temporary folder.
2. Runs each contender once on a few files, because a first run has extra work.
3. Runs the bare DataLoader once over all inputs. The files are then in the page cache, and its
   result is the one that all contenders must produce.
4. Runs the contenders in alternating rounds.

Writes the figures to build/bench/compare.json, which `benchmarks.page` turns into tables. The
output of failed contenders is in build/bench/logs.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.peers.contenders import BARE, CONTENDERS, WORKERS, Contender
from benchmarks.peers.environments import ROOT, InstallError
from benchmarks.peers.race import Arena, RaceError
from benchmarks.peers.results import Left, expected_counts
from benchmarks.peers.work import RECORDING_SECONDS, SUFFIXES, make_inputs

FIGURES = ROOT / "build" / "bench" / "compare.json"
QUICK = {"words": 5_000, "clips": 12, "spectrograms": 12}
FULL = {"words": 100_000, "clips": 60, "spectrograms": 300}
FULL_ROUNDS = 5
QUICK_ROUNDS = 3
WARM_UP_FILES = 4
WARM_UP_SECONDS = 10.0
# A contender that takes longer for one kind of work fails.
QUICK_LIMIT_SECONDS = 900.0
FULL_LIMIT_SECONDS = 3600.0


def turns(contenders: Sequence[Contender], *, full: bool) -> Iterator[Contender]:
    """Yield the contenders of each round. Every second round is in reverse order."""
    for number in range(FULL_ROUNDS if full else QUICK_ROUNDS):
        yield from contenders if number % 2 == 0 else contenders[::-1]


class Field:
    """The inputs of one kind of work, and the expected results."""

    def __init__(self, arena: Arena, kind: str, seconds: float) -> None:
        self.arena, self.kind, self.seconds = arena, kind, seconds
        self._expected: dict[int, Left] = {}

    def folder(self, count: int) -> Path:
        """Return the folder with `count` inputs."""
        return self.arena.folder / f"{self.kind}-{count}"

    def expected(self, count: int) -> Left:
        """Return the result of the bare DataLoader for `count` inputs. Creates missing inputs.

        Raises RaceError if the numbers of rows or files are wrong.
        """
        if count not in self._expected:
            make_inputs(self.kind, count, self.folder(count), seconds=self.seconds)
            bare = next(one for one in CONTENDERS if one.name == BARE)
            left = self.arena.run(bare, self.kind, self.folder(count)).left
            if (left.rows, left.files) != expected_counts(self.kind, count, self.seconds):
                raise RaceError(f"{self.kind}: {left.rows} rows and {left.files} files are wrong")
            self._expected[count] = left
        return self._expected[count]

    def close(self) -> None:
        """Remove the inputs, because the next kind of work needs the space."""
        for count in self._expected:
            shutil.rmtree(self.folder(count))


def warm_up(arena: Arena, contenders: Sequence[Contender]) -> dict[str, str]:
    """Run each contender on a few files. Returns the errors of failed contenders by name."""
    troubles = {}
    inputs = arena.folder / "warm-up"
    make_inputs("clips", WARM_UP_FILES, inputs, seconds=WARM_UP_SECONDS)
    for contender in contenders:
        try:
            run = arena.run(contender, "clips", inputs)
            say(f"first run of {contender.title}: {run.seconds:.1f} s")
        except (InstallError, RaceError) as error:
            troubles[contender.name] = str(error)
            say(f"{contender.title} is left out: {error}")
    return troubles


def compare(
    field: Field, contenders: Sequence[Contender], count: int, *, full: bool
) -> dict[str, Any]:
    """Run the contenders in turns over one kind of work. Returns their figures and errors."""
    whole = field.expected(count)
    found: dict[str, Any] = {}
    for contender in turns(contenders, full=full):
        inputs = min(count, contender.most.get(field.kind, count))
        mine = found.setdefault(contender.name, {"inputs": inputs, "runs": []})
        if "trouble" in mine:
            continue
        expected = field.expected(inputs)
        try:
            run = field.arena.run(contender, field.kind, field.folder(inputs), expected)
        except (InstallError, RaceError) as error:
            mine["trouble"] = str(error)
            say(f"{field.kind}: {contender.title}: {error}")
            continue
        mine["runs"].append({"seconds": run.seconds, "loop": run.loop})
        loop = f", loop {run.loop:.2f} s" if run.loop else ""
        say(f"{field.kind}: {contender.title}: {run.seconds:.1f} s{loop}")
    return {"inputs": count, "rows": whole.rows, "files": whole.files, "contenders": found}


def say(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Compare the contenders and write the figures."""
    names = [contender.name for contender in CONTENDERS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="more files, and five rounds for each")
    parser.add_argument("--kinds", nargs="+", choices=tuple(SUFFIXES), default=tuple(SUFFIXES))
    parser.add_argument("--contenders", nargs="+", choices=names, default=names)
    parser.add_argument("--inputs", type=int, help="number of files of each kind")
    parser.add_argument(
        "--seconds", type=float, default=RECORDING_SECONDS, help="length of a recording"
    )
    parser.add_argument("--folder", type=Path, help="where to work; needs 5 GB for --full")
    parser.add_argument("--figures", type=Path, default=FIGURES)
    options = parser.parse_args()
    chosen = [contender for contender in CONTENDERS if contender.name in options.contenders]
    counts = FULL if options.full else QUICK
    figures: dict[str, Any] = {
        "made": datetime.now(UTC).date().isoformat(),
        "command": " ".join(["python -m benchmarks.compare", *sys.argv[1:]]),
        "workers": WORKERS,
        "recording_seconds": options.seconds,
        "machine": machine.describe(),
        "titles": {one.name: one.title for one in chosen},
        "versions": {one.name: one.version for one in chosen},
        "kinds": {},
    }
    limit = FULL_LIMIT_SECONDS if options.full else QUICK_LIMIT_SECONDS
    # The name is short, because the paths of Ray's sockets have a maximum length.
    with tempfile.TemporaryDirectory(prefix="bm-", dir=options.folder) as name:
        arena = Arena(Path(name).resolve(), limit, options.figures.parent / "logs")
        figures["troubles"] = warm_up(arena, chosen)
        able = [one for one in chosen if one.name not in figures["troubles"]]
        if not able:
            raise SystemExit("No contender can run. The reasons are above.")
        for kind in options.kinds:
            field = Field(arena, kind, options.seconds)
            count = options.inputs or counts[kind]
            try:
                figures["kinds"][kind] = compare(field, able, count, full=options.full)
            except RaceError as error:
                raise SystemExit(
                    f"The bare DataLoader, the reference of the comparison, failed: {error}"
                ) from None
            field.close()
            # After each kind of work, because the next one may take hours.
            options.figures.parent.mkdir(parents=True, exist_ok=True)
            options.figures.write_text(json.dumps(figures, indent=1) + "\n")
    say(f"figures: {options.figures}")


if __name__ == "__main__":
    main()
