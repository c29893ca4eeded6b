"""A job over a folder, whose step copies its input and logs its executions."""

import shutil
from pathlib import Path

import pandas as pd

from batchmill.core.ledger.ledger import Ledger
from batchmill.core.planning.prepare import prepare
from batchmill.core.storage import LocalStore
from harness.jobs import job_of, run_job

STEP = """
from pathlib import Path
import {helper}
version = None
def step(source, out, *, times=1):
    (out / "copy.txt").write_text(source.read_text() * times)
    with open(Path(__file__).parent / "executed", "a") as file: file.write(source.name + "\\n")
    return {{"output": "copy.txt", "length": {helper}.measure(source)}}
"""
HELPER = "def measure(source):\n    return len(source.read_text())\n"


class CopyingJob:
    """A folder with inputs, a step and a manifest. `run` counts the executions."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.names = [f"{number:05d}.txt" for number in range(count)]
        self.labels = {}
        self.module = f"step_{abs(hash(str(folder)))}"
        self.helper = f"helper_{abs(hash(str(folder)))}"
        (folder / "in").mkdir()
        for name in self.names:
            self.path(name).write_text(name)
        self.edit(STEP.format(helper=self.helper), HELPER)
        self.list()

    @property
    def dataset(self):
        return self.folder / "out"

    @property
    def ledger(self):
        return Ledger(LocalStore(self.dataset))

    def path(self, name):
        return self.folder / "in" / name

    def output(self, name):
        table = pd.read_parquet(self.dataset / "metadata.parquet").set_index("input")
        return self.dataset / table.loc[f"in/{name}", "output"]

    def edit(self, step=None, helper=None):
        """Write the step's modules, and remove them from Python's import cache."""
        import sys

        for name, text in ((self.module, step), (self.helper, helper)):
            if text is not None:
                (self.folder / f"{name}.py").write_text(text)
        for name in (self.module, self.helper):
            sys.modules.pop(name, None)
        shutil.rmtree(self.folder / "__pycache__", ignore_errors=True)

    def list(self):
        rows = "".join(f"in/{name},{self.labels.get(name, 'none')}\n" for name in self.names)
        (self.folder / "m.csv").write_text("input,label\n" + rows)

    def job(self, **options):
        step = f"{self.module}:step"
        return job_of(self.folder / "m.csv", step, self.dataset, **options)

    def run(self, **options):
        """Run the job, and return the number of executions that the step logged."""
        log = self.folder / "executed"
        log.unlink(missing_ok=True)
        self.summary = run_job(
            self.folder / "m.csv", f"{self.module}:step", self.dataset, **options
        )
        return len(log.read_text().splitlines()) if log.exists() else 0

    def plan(self, **options):
        before = snapshot(self.dataset)
        prepared = prepare(self.job(**options))
        assert snapshot(self.dataset) == before, "a plan writes nothing"
        return prepared

    def reasons(self, **options):
        counts = self.plan(**options).plan.counts
        return {reason: count for reason, count in counts.items() if count}


def snapshot(folder):
    """Return the size and time of every file, by path."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}
