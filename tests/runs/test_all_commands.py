"""Random commands over a small dataset give what the documentation promises, also after kills."""

import csv
import io
import json
import os
import random
import shutil
import signal
import threading
from functools import partial

import pytest
from comparison import contents, faults
from crashing import CrashPoints, in_child
from jobs import run_job
from reference import Key, Record, Reference, Row

import batchmill
from batchmill import workers as isolation  # noqa: F401  # Children need not import it.
from batchmill.ledger.open import open_ledger
from batchmill.maintenance.verify import examine
from batchmill.options.failure_policy import FailurePolicy
from batchmill.storage import open_store

STEP = """
CODE = {code}
def step(source, out, *, factor):
    text = source.read_text()
    if text[:3] == "bad": raise ValueError(text)
    if text[:3] == "die": __import__("os")._exit(3)
    for i, letter in enumerate(text):
        value = 10 * factor + CODE
        (out / f"{{i}}.txt").write_text(letter * value)
        yield {{"output": f"{{i}}.txt", "letter": letter, "value": value}}
# {remark}
"""
# `make soak` plays more.
PARTS = 10
PER_PART = int(os.environ.get("BATCHMILL_SEQUENCES", "2"))
LENGTH = 12
NAMES = [f"{letter}.txt" for letter in "abcdef"]
TEXTS = ["", "x", "yz", "zyx", "bad", "bad luck", "die"]


class Sequence:
    """One job, a reference of what it must contain, and random commands over both."""

    def __init__(self, folder, dataset, seed):
        self.folder = folder
        self.dataset = str(dataset)
        self.chance = random.Random(seed)
        self.model = Reference()
        self.log = [f"seed {seed!r}"]
        self.remark = 0
        self.last_run = 0
        (folder / "in").mkdir(parents=True)
        for name, text in zip(NAMES, ["x", "yz", "bad", "zyx"], strict=False):
            self.put(name, text)
        self.write_step()

    def play(self, count):
        """Execute `count` random commands, and compare the dataset after each."""
        self.run()
        for _ in range(count):
            command = self.chance.choices(list(COMMANDS), list(COMMANDS.values()))[0]
            self.log.append(command.__name__)
            command(self)
            self.compare()
        self.compare_with_a_new_dataset()

    # Inputs, step and params

    def put(self, name, text):
        self.log.append(f"put {name} {text!r}")
        (self.folder / "in" / name).write_text(text)
        self.model.files[name] = text
        if name not in self.model.listed:
            self.model.listed.append(name)

    def change_inputs(self):
        for _ in range(self.chance.randint(1, 3)):
            self.put(self.chance.choice(NAMES), self.chance.choice(TEXTS))

    def touch(self):
        name = self.chance.choice(sorted(self.model.files))
        moment = self.chance.randint(1, 10**9)
        os.utime(self.folder / "in" / name, (moment, moment))

    def swap(self):
        """Exchange the files of two inputs. Their sizes may be the same."""
        files = self.model.files
        one, two = self.chance.choices(sorted(files), k=2)
        first, second = files[one], files[two]
        self.put(one, second)
        self.put(two, first)

    def withdraw(self):
        """Delete an input and its row in the manifest."""
        if len(self.model.listed) > 2:
            name = self.chance.choice(self.model.listed)
            self.lose(name)
            self.model.listed.remove(name)

    def lose(self, name=None):
        """Delete the file of an input, but not its row."""
        name = name or self.chance.choice(self.model.listed)
        self.log.append(f"delete {name}")
        (self.folder / "in" / name).unlink(missing_ok=True)
        self.model.files.pop(name, None)
        if not self.model.files:
            self.put(self.model.listed[0], "x")

    def list_again(self):
        """List an input whose row was deleted, with the same file as before or with a new one."""
        away = [name for name in NAMES if name not in self.model.listed]
        if away:
            self.put(self.chance.choice(away), self.chance.choice(TEXTS))

    def edit_the_step(self):
        self.model.code += 1
        self.write_step()

    def edit_a_remark(self):
        self.remark += 1
        self.write_step()

    def change_a_param(self):
        self.model.factor += 1

    def write_step(self):
        text = STEP.format(code=self.model.code, remark=self.remark)
        (self.folder / "letters.py").write_text(text)
        # Python compares the size of a file, and its time in whole seconds.
        shutil.rmtree(self.folder / "__pycache__", ignore_errors=True)

    # Commands

    def options(self):
        """Choose the options of a run."""
        chance = self.chance
        return {
            "force": chance.random() < 0.15,
            "prune": chance.random() < 0.4,
            "prune_failed": chance.random() < 0.2,
            "keep_versions": chance.randint(0, 2),
            "accept": False,
            "pack": chance.random() < 0.5,
        }

    def accept_an_edit(self):
        """Change only the code, and keep the results of the earlier code."""
        if all(record.key.factor == self.model.factor for record in self.model.records.values()):
            self.edit_the_step()
            self.run(accept=True, force=False)

    def run(self, **chosen):
        options = self.options() | chosen
        self.log.append(f"run {options}")
        assert in_child(partial(self.execute, **options)) == 0
        self.finish(options)

    def run_and_kill(self):
        """Kill a run at a random change of the dataset. The same command then ends."""
        options, at = self.options(), self.chance.randint(1, 90)
        self.log.append(f"run {options}, killed at change {at}")
        points = CrashPoints(self.dataset, at)
        code = in_child(partial(self.execute, points=points, **options))
        assert code in (0, -signal.SIGKILL)
        assert in_child(partial(self.execute, **options)) == 0
        self.finish(options)

    def run_and_kill_at_a_moment(self):
        """Kill a run after a random time. The same command then ends."""
        options, seconds = self.options(), self.chance.uniform(0, 0.4)
        self.log.append(f"run {options}, killed after {seconds} s")

        def execute():
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
            self.execute(**options)

        assert in_child(execute) in (0, -signal.SIGKILL)
        assert in_child(partial(self.execute, **options)) == 0
        self.finish(options)

    def damage(self):
        """Cut or delete an output that the step would make again in the same way, and run."""
        model, store = self.model, open_store(self.dataset)
        now = {name: Key(model.files.get(name), model.factor, model.code) for name in model.listed}
        whole = {name for name in now if model.records.get(name) == Record("ok", *[now[name]] * 2)}
        loose = [
            row
            for row in batchmill.metadata(self.dataset).to_dict("records")
            if row["input"].removeprefix("in/") in whole and not isinstance(row.get("pack"), str)
        ]
        if loose:
            row = self.chance.choice(loose)
            self.log.append(f"damage {row['output']}")
            store.delete(row["output"])
            if self.chance.random() < 0.5:
                store.write(row["output"], b"")
            model.due.add(row["input"].removeprefix("in/"))
            self.run(pack=False)  # A pack would not restore the file for earlier versions.

    def execute(self, *, points=None, force, prune, prune_failed, keep_versions, accept, pack):
        os.chdir(self.folder)
        rows = "".join(f"in/{name}\n" for name in self.model.listed)
        (self.folder / "m.csv").write_text("input\n" + rows)
        if points:
            points.watch()
        options = {"allow_missing": True, "accept_change": accept}
        run_job(
            "m.csv", "letters:step", self.dataset, factor=self.model.factor, force=force,
            prune=prune, prune_failed=prune_failed, keep_versions=keep_versions, num_workers=1,
            cores=1, policy=FailurePolicy(retries=0),
            options=options | ({"pack": "1MB"} if pack else {}),
        )  # fmt: skip

    def finish(self, options):
        numbers = [version.number for version in open_ledger(self.dataset).versions.read_all()]
        last, self.last_run = self.last_run, open_ledger(self.dataset).runs()[-1]
        del options["pack"]
        self.model.run([number for number in numbers if number > last], **options)

    def retry(self):
        expected = {f"in/{name}" for name in self.model.retry()}
        assert set(batchmill.retry(self.dataset)) == expected

    def keep(self):
        number = self.chance.choice(list(self.model.versions))
        name = f"v{len(self.log)}"
        batchmill.keep(self.dataset, number, name=name)
        self.model.names[name] = number

    def drop(self):
        if self.model.names:
            name = self.chance.choice(list(self.model.names))
            batchmill.keep(self.dataset, drop=name)
            del self.model.names[name]

    # Checks

    def compare(self):
        model, store = self.model, open_store(self.dataset)
        table = batchmill.metadata(self.dataset)
        assert rows_of(table, partial(read_plainly, store)) == named(model.table())
        outcomes = {f"in/{name}": kind for name, kind in model.outcomes().items()}
        status = batchmill.status(self.dataset)
        assert outcome_column(status.outcomes) == outcomes
        assert {kind: n for kind, n in status.summary.outcomes.items() if n} == model.counts()
        found = outcome_column(batchmill.failures(self.dataset))
        assert found == {f"in/{name}": kind for name, kind in model.failures().items()}
        listed = csv.DictReader(io.StringIO(store.read("failures.csv").decode()))
        assert {row["input"]: row["outcome"] for row in listed} == found
        ledger = open_ledger(self.dataset)
        assert [v.number for v in ledger.versions.read_all()] == list(model.versions)
        assert ledger.versions.names() == model.names
        for number, rows in model.versions.items():
            table = batchmill.metadata(self.dataset, version=number)
            assert rows_of(table, partial(read_plainly, store)) == named(rows), number
            assert examine(ledger, version=number, hash_files=True) == []
        assert faults(self.dataset) == []

    def compare_with_a_new_dataset(self):
        """The same inputs in an empty folder give the same bytes."""
        for name in self.model.listed:
            if name not in self.model.files:
                self.put(name, "x")
        for name in list(self.model.names):
            batchmill.keep(self.dataset, drop=name)
            del self.model.names[name]
        # Results of accepted edits are not those of the last code.
        self.run(force=True, prune=True, prune_failed=True, keep_versions=0)
        self.compare()
        updated, self.dataset = self.dataset, str(self.folder / "new")
        assert in_child(partial(self.execute, **PLAIN)) == 0
        expected = contents(self.dataset)
        if open_store(updated).names("packs"):  # Only this table has the addresses in packs.
            del expected["metadata.parquet"]
        assert contents(updated) == expected


PLAIN = {
    "force": False,
    "prune": False,
    "prune_failed": False,
    "keep_versions": 0,
    "accept": False,
    "pack": False,
}
COMMANDS = {
    Sequence.change_inputs: 4,
    Sequence.touch: 1,
    Sequence.swap: 1,
    Sequence.withdraw: 2,
    Sequence.lose: 1,
    Sequence.list_again: 2,
    Sequence.edit_the_step: 1,
    Sequence.edit_a_remark: 1,
    Sequence.change_a_param: 1,
    Sequence.accept_an_edit: 1,
    Sequence.run: 8,
    Sequence.run_and_kill: 4,
    Sequence.run_and_kill_at_a_moment: 2,
    Sequence.damage: 1,
    Sequence.retry: 2,
    Sequence.keep: 2,
    Sequence.drop: 1,
}


def outcome_column(table):
    return dict(zip(table["input"], table["outcome"], strict=True))


def named(rows):
    return [row._replace(input=f"in/{row.input}") for row in rows]


def rows_of(table, read):
    """Return the rows of a table, each with the content of its output."""
    return [
        Row(
            row["input"],
            row["letter"],
            row["value"],
            read(row["output"], row.get("pack")),
            bool(row.get("stale", False)),
        )
        for row in table.to_dict("records")
    ]


def read_plainly(store, output, pack):
    """Read an output as the page on packs says, without the reader of batchmill."""
    if not isinstance(pack, str):
        return store.read(output).decode()
    archive, _, rest = pack.partition(".tar/")
    name, (offset, size) = f"{archive}.tar", map(int, rest.partition("/")[0].split("-"))
    while not store.exists(name):
        moved = json.loads(store.read(f"{name.removesuffix('.tar')}.moved.json"))
        name, offset = moved[str(offset)]
    return store.read(name)[offset : offset + size].decode()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_random_commands_in_a_folder(tmp_path, seed, part):
    for number in range(PER_PART):
        play(tmp_path / str(number), tmp_path / str(number) / "out", f"{seed}-{part}-{number}")


def test_random_commands_in_a_bucket(tmp_path, bucket, seed):
    for number in range(max(1, PER_PART // 2)):
        play(tmp_path / str(number), f"{bucket}/out-{number}", f"{seed}-{number}")


def play(folder, dataset, seed):
    """Play one sequence. An error names its seed and its commands."""
    sequence = Sequence(folder, dataset, seed)
    try:
        sequence.play(LENGTH)
    except BaseException as error:
        error.add_note("\n".join(sequence.log))
        raise
