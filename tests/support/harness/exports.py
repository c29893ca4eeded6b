"""Export datasets in tests, and read exports back with the libraries of the formats."""

import json
import os
import sys
from pathlib import Path

from batchmill.datasets.exporting.run_export import export_dataset
from harness.crashing import CrashPoints
from harness.published import publish_rows

LABELS = ["dog", "cat", "eel"]
# Opening a file is a step, too: a sample's file is opened while the shard before it is incomplete.
_STEPS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate"}


def animals(folder, count=24, size=2000, suffix="bin", content=None, **columns):
    """Make a dataset of `count` files, with labels. `content` is a function of the number."""
    make = content or (lambda number: bytes([number % 256]) * size)
    files = {f"{number:03}.{suffix}": make(number) for number in range(count)}
    labels = [LABELS[number % 3] for number in range(count)]
    return publish_rows(folder, files, **({"label": labels} | columns))


def export(dataset, out, to="webdataset", **options):
    """Export in this process, to shards of about three samples of 2,000 bytes."""
    given = {"shard_size": 10_000, "num_workers": 1} | options
    return export_dataset(str(dataset), str(out), to=to, **given)


def files_of(folder):
    """Return the content of every file of a folder by relative name, hidden files included."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    }


def expected(dataset, rows):
    """Return (content of the file, label) of each row of a published table."""
    return sorted(
        ((Path(dataset) / row["output"]).read_bytes(), row["label"])
        for row in rows.to_dict("records")
    )


def in_webdataset(sample):
    """Return (content, label) of a sample of a WebDataset. Spawned workers import it."""
    [payload] = (
        value for name, value in sample.items() if not name.startswith("__") and name != "json"
    )
    return payload, json.loads(sample["json"])["label"]


class EveryStep(CrashPoints):
    """Counts all calls of the operating system that open, rename or remove files."""

    def watch(self):
        """Count from now on, in this process and its forks."""
        self._main = os.getpid()
        sys.addaudithook(self._count_step)

    def _count_step(self, event, arguments):
        if event in _STEPS and os.getpid() == self._main:
            self.reach()
