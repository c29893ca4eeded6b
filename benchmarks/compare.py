"""batchmill and its peers: the same work over the same files, each as a whole command.

python -m benchmarks.compare [--full] [--kinds words] [--contenders batchmill ray_data]

Makes the inputs in a temporary folder; runs each contender once on a few files, for what only a
first run has to do; lets the bare DataLoader go over all inputs once, so that they are in memory
and it is known what must come of them; then lets all take turns. Writes the figures to
build/bench/compare.json, of which `benchmarks.page` makes tables; what contenders printed that
failed is in build/bench/logs.
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
from benchmarks.peers.contenders import BARE, CONTENDERS, OURS, WORKERS, Contender
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
# Whoever takes longer over one kind of work is left out.
QUICK_LIMIT_SECONDS = 900.0
FULL_LIMIT_SECONDS = 3600.0


def rounds_of(contender: Contender, *, full: bool) -> int:
    """Return how often a contender runs."""
    if full:
        return FULL_ROUNDS
    return QUICK_ROUNDS if contender.name in (BARE, OURS) else 1


def turns(contenders: Sequence[Contender], *, full: bool) -> Iterator[Contender]:
    """Yield contenders in alternating rounds; every other one goes backwards."""
    for number in range(max(rounds_of(one, full=full) for one in contenders)):
        ordered = contenders if number % 2 == 0 else contenders[::-1]
        yield from (one for one in ordered if rounds_of(one, full=full) > number)


class Field:
    """The inputs of one kind of work, and what must come of them."""

    def __init__(self, arena: Arena, kind: str, seconds: float) -> None:
        self.arena, self.kind, self.seconds = arena, kind, seconds
        self._expected: dict[int, Left] = {}

    def folder(self, count: int) -> Path:
        """Return the folder with so many inputs."""
        return self.arena.folder / f"{self.kind}-{count}"

    def expected(self, count: int) -> Left:
        """Return what the bare DataLoader leaves of so many inputs; makes them, if need be.

        Raises RaceError if that is not as many rows and files as there must be.
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
        """Remove the inputs: the next kind's need the room."""
        for count in self._expected:
            shutil.rmtree(self.folder(count))


def warm_up(arena: Arena, contenders: Sequence[Contender]) -> dict[str, str]:
    """Run each on a few files; returns what is wrong with those that fail."""
    troubles = {}
    inputs = arena.folder / "warm-up"
    make_inputs("clips", WARM_UP_FILES, inputs, seconds=WARM_UP_SECONDS)
    for contender in contenders:
        try:
            run = arena.run(contender, "clips", inputs)
            say(f"first run of {contender.title}: {run.seconds:.1f} s")
        except (InstallError, RaceError) as error:
            troubles[contender.name] = str(error)
            say(f"{contender.title} does not take part: {error}")
    return troubles


def compare(
    field: Field, contenders: Sequence[Contender], count: int, *, full: bool
) -> dict[str, Any]:
    """Let contenders take turns at one kind of work; returns their figures and troubles."""
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
    """Tell how it goes."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Compare, and write the figures."""
    names = [contender.name for contender in CONTENDERS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="more files, five rounds of all")
    parser.add_argument("--kinds", nargs="+", choices=tuple(SUFFIXES), default=tuple(SUFFIXES))
    parser.add_argument("--contenders", nargs="+", choices=names, default=names)
    parser.add_argument("--inputs", type=int, help="so many files of each kind")
    parser.add_argument("--seconds", type=float, default=RECORDING_SECONDS, help="of a recording")
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
    # A short name: Ray's sockets are in there, whose paths must not be long.
    with tempfile.TemporaryDirectory(prefix="bm-", dir=options.folder) as name:
        arena = Arena(Path(name).resolve(), limit, options.figures.parent / "logs")
        figures["troubles"] = warm_up(arena, chosen)
        able = [one for one in chosen if one.name not in figures["troubles"]]
        if not able:
            raise SystemExit("none of the contenders can take part")
        for kind in options.kinds:
            field = Field(arena, kind, options.seconds)
            count = options.inputs or counts[kind]
            try:
                figures["kinds"][kind] = compare(field, able, count, full=options.full)
            except RaceError as error:
                raise SystemExit(
                    f"the bare DataLoader, which all are compared with: {error}"
                ) from None
            field.close()
            # Each time: hours may lie between two kinds.
            options.figures.parent.mkdir(parents=True, exist_ok=True)
            options.figures.write_text(json.dumps(figures, indent=1) + "\n")
    say(f"figures: {options.figures}")


if __name__ == "__main__":
    main()
