"""A chain of three datasets is brought up to date after random changes, also after kills."""

import os
import random
import signal
import sys
from functools import partial
from pathlib import Path

import pytest
from harness.comparison import faults
from harness.crashing import CrashPoints, in_child
from harness.jobs import run_job, update

import batchmill
from batchmill.core.storage import open_store

pytestmark = pytest.mark.slow

LEVELS = ("clips", "features", "scores")
# No input fails, because an input that fails keeps its earlier result.
TEXTS = ["a", "b", "ab", "abc", "cab"]
STEP = """
def step(source, out):
    text = source.read_text()
    for number, letter in enumerate(text[-3:]):
        (out / f"{{number}}.txt").write_text(text[:-3] + letter + {mark!r})
        yield {{"output": f"{{number}}.txt", "letter": letter}}
"""
PARTS, LENGTH = 2, 4


class Chain:
    """Three jobs, each over the outputs of the one before, and random changes."""

    def __init__(self, folder, seed):
        self.folder = folder
        self.chance = random.Random(seed)
        self.log = [f"seed {seed!r}"]
        (folder / "in").mkdir(parents=True)
        for level in LEVELS:
            self.edit(level)
        for name in "abc":
            self.put(name, self.chance.choice(TEXTS))
        assert in_child(partial(self.run, "chain")) == 0

    def put(self, name, text):
        self.log.append(f"put {name} {text}")
        (self.folder / "in" / f"{name}.txt").write_text(text)

    def edit(self, level):
        self.log.append(f"edit {level}")
        mark = self.chance.choice("xyz")
        (self.folder / f"step_{level}.py").write_text(STEP.format(mark=mark))

    def change(self):
        """Change an input or a step."""
        kind = self.chance.choice(["put", "put", "delete", "edit", "edit"])
        names = sorted((self.folder / "in").iterdir())
        if kind == "put":
            self.put(self.chance.choice("abcdef"), self.chance.choice(TEXTS))
        elif kind == "edit":
            self.edit(self.chance.choice(LEVELS))
        elif len(names) > 1:
            self.log.append(f"delete {names[0].name}")
            names[0].unlink()

    def damage(self, level):
        """Delete an output of an input that is listed."""
        store = open_store(str(self.folder / "chain" / level))
        rows = batchmill.metadata(self.folder / "chain" / level)
        if "output" in rows and len(rows):
            self.log.append(f"damage {level}")
            store.delete(rows["output"].iloc[0])

    def run(self, folder):
        """Run the three jobs into a folder."""
        os.chdir(self.folder)
        manifest = "in"
        for level in LEVELS:
            output = f"{folder}/{level}"
            run_job(manifest, f"step_{level}:step", output)
            manifest = output

    def update(self, points=None):
        os.chdir(self.folder)
        if points:
            points.watch()
        update("chain/scores", deep=True)

    def play(self, count):
        for _ in range(count):
            if self.chance.random() < 0.3:
                self.damage(self.chance.choice(LEVELS))
                assert in_child(self.update) == 0
            for _ in range(self.chance.randint(0, 2)):
                self.change()
            if self.chance.random() < 0.5:
                at = self.chance.randint(1, 200)
                self.log.append(f"killed at change {at}")
                points = CrashPoints(str(self.folder / "chain"), at)
                assert in_child(partial(self.update, points)) in (0, -signal.SIGKILL)
            self.log.append("update")
            assert in_child(self.update) == 0
        assert in_child(partial(self.run, "new")) == 0
        for level in LEVELS:
            tables = [
                Path(self.folder, place, level, "metadata.parquet").read_bytes()
                for place in ("chain", "new")
            ]
            assert tables[0] == tables[1], level
            assert faults(self.folder / "chain" / level) == []
        links = batchmill.graph(self.folder / "chain" / "scores")
        assert [bool(link.out_of_date) for link in links] == [False] * 3


@pytest.mark.parametrize("part", range(PARTS))
def test_a_deep_update_gives_the_same_tables_as_new_datasets(tmp_path, seed, part):
    chain = Chain(tmp_path, f"{seed}-{part}")
    try:
        chain.play(LENGTH)
    except BaseException:
        print(*chain.log, sep="\n", file=sys.stderr)
        raise
