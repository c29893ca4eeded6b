"""Change one expression of a source file at a time, and print the changes that no test notices.

    make mutants FILE=src/batchmill/core/ledger/parts.py [COUNT=40] [TESTS="tests/core tests/runs"]

The tests of the file's package, or of TESTS, run on a copy of the sources, without those that start
a server or a command. COUNT limits the number of changes: a random sample. The exit code is 1 if
the tests notice less than nine tenths.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import WorkerOutcome, WorkResult

ROOT = Path(__file__).resolve().parents[2]
# Comparisons of identity and membership are never meant where another one stands.
SKIPPED = ("_Is", "_IsNot", "_In", "_NotIn")
GOAL = 0.9
CONFIG = """
[cosmic-ray]
module-path = "{module}"
timeout = 300.0
excluded-modules = []
test-command = "{python} -m pytest -q -x -m 'not end_to_end and not system' {tests}"
[cosmic-ray.distributor]
name = "local"
"""


def main():
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("tests", nargs="*", type=Path)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = parser.parse_args()
    inside = given.file.resolve().relative_to(ROOT / "src")
    tests = given.tests or [Path("tests", *inside.parts[1:-1])]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        sources = Path(folder, "sources")
        (installed,) = ROOT.glob("build/__editable__.batchmill-*")
        shutil.copytree(installed, sources)  # It contains links to the sources.
        python = ROOT / ".venv" / "bin" / "python"
        names = " ".join(str(path.resolve()) for path in tests)
        config = CONFIG.format(module=sources / inside, python=python, tests=names)
        Path(folder, "config.toml").write_text(config)
        # The copy precedes the installed package.
        environment = os.environ | {"PYTHONPATH": str(sources)}
        cosmic_ray = Path(sys.executable).with_name("cosmic-ray")
        for command in ("init", "baseline", "exec"):
            session = ["config.toml", *([] if command == "baseline" else ["session"])]
            subprocess.run([cosmic_ray, command, *session], cwd=folder, env=environment, check=True)
            if command == "init":
                choose(f"{folder}/session", given)
        with use_db(f"{folder}/session", WorkDB.Mode.open) as session:
            return report(given.file, session, given.seed)


def choose(path, given):
    """Skip pointless changes, and all but `count` random ones."""
    lines = given.file.read_text().splitlines()
    with use_db(path, WorkDB.Mode.open) as session:
        items = list(session.pending_work_items)
        changes = {one.job_id: one.mutations[0] for one in items}
        wanted = [
            name
            for name, change in sorted(changes.items(), key=lambda one: one[1].start_pos)
            if not change.operator_name.endswith(SKIPPED)
            # `strict=True` only checks the code itself.
            and not lines[change.start_pos[0] - 1][: change.end_pos[1]].endswith("strict=True")
        ]
        if given.count:
            chance = random.Random(given.seed)
            wanted = chance.sample(wanted, min(given.count, len(wanted)))
        others = [name for name in changes if name not in set(wanted)]
        session.set_multiple_results(others, WorkResult(WorkerOutcome.SKIPPED))


def report(file, session, seed):
    """Print the changes that no test noticed. Return the exit code."""
    results = [one for _, one in session.results if one.worker_outcome != WorkerOutcome.SKIPPED]
    missed = [one for one in results if not one.is_killed]
    for one in missed:
        lines = (one.diff or "").splitlines()
        print(*[line for line in lines if not line.startswith(("---", "+++"))], "", sep="\n")
    noticed = len(results) - len(missed)
    print(f"{file}: the tests notice {noticed} of {len(results)} changes (seed {seed}).")
    return int(noticed < GOAL * len(results))


if __name__ == "__main__":
    sys.exit(main())
