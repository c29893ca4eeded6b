"""After any changes to inputs, step and outputs, a run gives the same dataset as a new run."""

import os
import shutil
import signal
import tempfile
from functools import partial
from pathlib import Path

import pytest
from comparison import contents, faults
from crashing import CrashPoints, in_child
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from jobs import run_job

from batchmill import workers as isolation  # noqa: F401  # Children need not import it.

STEP = """
def step(source, out):
    word = source.read_text()
    if word.startswith("bad"): raise ValueError(word)
    for i, letter in enumerate(word):
        (out / f"{i}").write_text(letter * FACTOR)
        yield {"output": f"{i}", "word": word}
"""
NAMES = st.sampled_from([f"{letter}.txt" for letter in "abcdef"])
WORDS = st.sampled_from(["", "x", "yz", "zyx", "bad", "bad luck"])


class Datasets(RuleBasedStateMachine):
    """Compares a dataset that is updated with a dataset that is made from scratch."""

    @initialize()
    def begin(self):
        self.folder = Path(tempfile.mkdtemp(prefix="batchmill-model-"))
        (self.folder / "in").mkdir()
        self.words = {}
        self.factor = 1
        self.write_step()
        for name, word in {"a.txt": "x", "b.txt": "yz", "c.txt": "bad", "d.txt": "zyx"}.items():
            self.put(name, word)
        self.run_to_the_end()

    def write_step(self):
        (self.folder / "letters.py").write_text(f"FACTOR = {self.factor}\n{STEP}")

    @rule(name=NAMES, word=WORDS)
    def put(self, name, word):
        self.words[name] = word
        (self.folder / "in" / name).write_text(word)

    @rule(name=NAMES)
    def touch(self, name):
        if name in self.words:
            os.utime(self.folder / "in" / name, (1, 1))

    @rule(name=NAMES)
    def withdraw(self, name):
        self.words.pop(name, None)
        (self.folder / "in" / name).unlink(missing_ok=True)

    @rule(number=st.integers(0, 20), cut=st.booleans())
    def damage_an_output(self, number, cut):
        found = sorted((self.folder / "out" / "files").rglob("*"))
        files = [path for path in found if path.is_file()]
        if files:
            path = files[number % len(files)]
            path.write_text("") if cut else path.unlink()

    @rule()
    def edit_the_step(self):
        self.factor += 1
        self.write_step()

    @rule(at=st.integers(1, 90), kept=st.integers(0, 2))
    def run_and_kill(self, at, kept):
        points = CrashPoints(str(self.folder / "out"), at)
        code = in_child(partial(self.run, self.folder / "out", points, kept=kept))
        assert code in (0, -signal.SIGKILL)

    @rule(kept=st.integers(0, 2))
    def run_and_keep_earlier_results(self, kept):
        run = partial(self.run, self.folder / "out", kept=kept, prune_failed=False)
        assert in_child(run) == 0
        assert faults(self.folder / "out") == []

    @rule()
    def run_to_the_end(self):
        assert in_child(partial(self.run, self.folder / "out")) == 0
        scratch = self.folder / "scratch"
        assert in_child(partial(self.run, scratch)) == 0
        assert contents(self.folder / "out") == contents(scratch)
        assert faults(self.folder / "out") == []
        shutil.rmtree(scratch)

    def run(self, dataset, points=None, *, kept=0, prune_failed=True):
        """Run the job. By default, only the results of the last version stay."""
        os.chdir(self.folder)
        rows = "".join(f"in/{name}\n" for name in sorted(self.words)) or "in/none.txt\n"
        (self.folder / "m.csv").write_text("input\n" + rows)
        if points:
            points.watch()
        run_job(
            "m.csv", "letters:step", dataset, prune=True, num_workers=1, cores=1,
            keep_versions=kept, prune_failed=prune_failed,
        )  # fmt: skip

    def teardown(self):
        if hasattr(self, "folder"):
            self.run_to_the_end()
            shutil.rmtree(self.folder)


SETTINGS = settings(
    max_examples=2,
    stateful_step_count=10,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.slow
class TestDatasets(Datasets.TestCase):
    settings = SETTINGS


@pytest.mark.long
@pytest.mark.soak
class TestManyDatasets(Datasets.TestCase):
    settings = settings(SETTINGS, max_examples=30, stateful_step_count=20)
