"""Random commands over a small dataset give what the documentation promises, also after kills."""

import csv
import io
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections import Counter
from contextlib import nullcontext, suppress
from dataclasses import asdict
from functools import partial

import pytest
from harness.comparison import contents, faults
from harness.crashing import CrashPoints, in_child
from harness.jobs import run_job, update
from harness.letter_inputs import STEPS, Inputs
from harness.reference import Key, Options, Record, Reference, Row
from harness.small_tables import small_tables

import batchmill
from batchmill import OptionError
from batchmill.api.jobs.reproduction import write_reproduction
from batchmill.core.ledger.open import open_ledger
from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.planning.changed_libraries import versions_in
from batchmill.core.storage import is_url, open_store
from batchmill.datasets.maintenance.cleanup import forget_runs
from batchmill.datasets.maintenance.merging import MANY_PARTS, with_merged_parts
from batchmill.datasets.maintenance.verify import examine
from batchmill.runs import run as run_module
from batchmill.runs import workers  # noqa: F401  # Children need not import it.
from batchmill.runs.proof import ProofOptions, prove, record_proof

# `make soak` plays more.
PARTS = 10
PER_PART = int(os.environ.get("BATCHMILL_SEQUENCES", "1"))
LENGTH = 12
NAMES = [f"{letter}.txt" for letter in "abcdef"]
TEXTS = ["", "x", "yz", "zyx", "bad", "bad luck", "die", "flaky"]
PARTITIONS = {"train", "val"}


class Sequence:
    """One job, a reference of what it must contain, and random commands over both."""

    def __init__(self, folder, dataset, seed):
        self.folder = folder
        self.dataset = str(dataset)
        self.chance = random.Random(seed)
        kind = self.chance.choices(list(STEPS), [5, 2, 2, 3])[0]
        form = self.chance.choice(["file", "file", "pair", "folder"])
        is_function = kind in ("function", "async")
        self.inputs = Inputs(folder, form if is_function else "file", kind)
        kind = "function" if is_function else kind
        self.model = Reference(kind, retries=self.chance.randint(0, 1))
        self.partition = self.chance.choice(["", "", "train=0.5,val=0.5"])
        self.partitions = {}
        self.log = [
            f"seed {seed!r}: {self.inputs.kind}, {self.inputs.form}, retries {self.model.retries}"
        ]
        self.log.append(f"partition {self.partition!r}")
        self.remark = 0
        self.last_run = 0
        # The results of each version, and its step.
        self.results = {}
        self.many = MANY_PARTS
        # An input of an async step runs twice if another one dies beside it. So it may succeed.
        is_async = self.inputs.kind == "async"
        self.texts = [text for text in TEXTS if not (is_async and text == "flaky")]
        folder.mkdir()
        for name, text in zip(NAMES, ["x", "yz", "bad", "zyx"], strict=False):
            self.put(name, text)
        self.write_step()
        self.inputs.install_library(self.model.library)

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
        self.inputs.put(name, text)
        self.model.files[name] = text
        if name not in self.model.listed:
            self.model.listed.append(name)

    def change_inputs(self):
        for _ in range(self.chance.randint(1, 3)):
            self.put(self.chance.choice(NAMES), self.chance.choice(self.texts))

    def touch(self):
        name = self.chance.choice(sorted(self.model.files))
        self.inputs.touch(name, self.chance.randint(1, 10**9))

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

    def rename(self):
        """Give a file, and its row in the manifest, a name that no input has."""
        free = [name for name in NAMES if name not in self.model.listed]
        if free:
            name = self.chance.choice(sorted(self.model.files))
            text = self.model.files[name]
            self.lose(name)
            self.model.listed.remove(name)
            self.put(self.chance.choice(free), text)

    def lose(self, name=None):
        """Delete the file of an input, but not its row."""
        name = name or self.chance.choice(self.model.listed)
        if name in self.model.files:  # The loss of the other file of a pair is another change.
            self.log.append(f"delete {name}")
            self.inputs.lose(name, self.chance)
            del self.model.files[name]
        if not self.model.files:
            self.put(self.model.listed[0], "x")

    def list_again(self):
        """List an input whose row was deleted, with the same file as before or with a new one."""
        away = [name for name in NAMES if name not in self.model.listed]
        if away:
            self.put(self.chance.choice(away), self.chance.choice(self.texts))

    def edit_the_step(self):
        self.model.code += 1
        self.write_step()

    def edit_the_form(self):
        """Change the code, but not its results."""
        self.model.form = 1 - self.model.form
        self.write_step()

    def edit_a_remark(self):
        self.remark += 1
        self.write_step()

    def upgrade(self):
        """Install another version of the library that the step imports."""
        self.model.library += 1
        self.inputs.install_library(self.model.library)

    def change_a_param(self):
        self.model.factor += 1

    def step(self):
        return self.model.factor, self.model.code, self.model.form

    def write_step(self):
        self.inputs.write_step(code=self.model.code, form=self.model.form, remark=self.remark)

    # Runs

    def options(self):
        """Choose the options of a run."""
        chance = self.chance
        return Options(
            force=chance.random() < 0.15,
            prune=chance.random() < 0.4,
            prune_failed=chance.random() < 0.2,
            keep_versions=chance.randint(0, 2),
            pack=chance.random() < 0.5,
            counts_libraries=chance.random() < 0.3,
        )

    def run(self, **chosen):
        options = self.options()._replace(**chosen)
        self.recorded = options, self.model.factor
        self.log.append(f"run {options}")
        self.inputs.clear_log()
        assert in_child(partial(self.execute, options)) == 0
        expected = self.finish(options)
        executed = Counter(self.inputs.executed())
        for name in executed.keys() - expected.inputs:
            # The content of an input that crashed is not recorded. So a new time executes it again.
            if self.model.files[name][:3] == "die":
                del executed[name]
        if options.stop_after_same:
            # A failed input may wait for its next attempt when the run stops.
            assert expected.inputs <= set(executed) <= expected.inputs | self.model.left
            return
        # A worker that dies loses the outputs that it has not uploaded to a bucket.
        loses_outputs = is_url(self.dataset) and "die" in map(self.model.files.get, expected.inputs)
        # In an async step, the inputs beside one that dies are executed again.
        if self.inputs.kind == "function" and not expected.compared and not loses_outputs:
            assert executed == self.model.attempts(expected.inputs)
        # A batch that failed is executed again in parts.
        assert set(executed) == expected.inputs | expected.compared

    def run_a_sample(self):
        self.run(sample=self.chance.randint(1, 4), expect=self.expectation(0.2))

    def run_with_an_expectation(self):
        """The table may break the expectation. Then nothing is published."""
        self.run(expect=self.expectation())

    def run_that_may_stop(self):
        """The run stops if its first two inputs fail with one cause."""
        self.run(stop_after_same=2)

    def run_after_an_edit(self):
        """Change only the code or the library. Keep the earlier results, or compare with them."""
        if all(record.key.factor == self.model.factor for record in self.model.records.values()):
            self.chance.choice([self.edit_the_step, self.edit_the_form, self.upgrade])()
            way = self.chance.choice(["accept_change", "verify_change"])
            sample = self.chance.randint(1, 4) if self.chance.random() < 0.2 else 0
            self.run(force=False, sample=sample, expect=self.expectation(0.2), **{way: True})

    def expectation(self, share=1):
        """Return the value that all rows must be below, in a share of the runs. 0: none."""
        if self.chance.random() >= share:
            return 0
        return 10 * self.model.factor + self.model.code + self.chance.randint(-9, 1)

    def run_and_kill(self):
        """Kill a run at a random change of the dataset. The same command then ends."""
        options, at = self.options(), self.chance.randint(1, 90)
        self.log.append(f"run {options}, killed at change {at}")
        points = CrashPoints(self.dataset, at)
        self.run_again(options, partial(self.execute, options, points=points))

    def run_and_kill_at_a_moment(self):
        """Kill a run after a random time. The same command then ends."""
        options, seconds = self.options(), self.chance.uniform(0, 0.4)
        self.log.append(f"run {options}, killed after {seconds} s")

        def execute():
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
            self.execute(options)

        self.run_again(options, execute)

    def update(self):
        """Run the recorded job again: the param and some options are those of the last run."""
        last, self.model.factor = self.recorded
        options = Options(pack=last.pack, expect=last.expect, stop_after_same=last.stop_after_same)
        self.run(**options._replace(is_update=True)._asdict())

    def run_again(self, options, killed):
        self.recorded = options, self.model.factor
        self.inputs.clear_log()
        assert in_child(killed) in (0, -signal.SIGKILL)
        self.inputs.clear_log()
        assert in_child(partial(self.execute, options)) == 0
        self.finish(options)

    def damage(self):
        """Cut or delete an output that the step would make again in the same way, and run."""
        model, store = self.model, open_store(self.dataset)
        now = {
            name: Key(model.files.get(name), model.factor, model.code, model.form)
            for name in model.listed
        }
        whole = {name for name in now if model.records.get(name) == Record("ok", *[now[name]] * 2)}
        if model.kind == "class" or not model.is_published:
            return
        loose = [
            row
            for row in batchmill.metadata(self.dataset).to_dict("records")
            if row["letter"]  # Otherwise the output is empty, and cannot be cut.
            and row["input"].removeprefix("in/") in whole
            and not isinstance(row.get("pack"), str)
        ]
        if loose:
            row = self.chance.choice(loose)
            self.log.append(f"damage {row['output']}")
            store.delete(row["output"])
            if self.chance.random() < 0.5:
                store.write(row["output"], b"")
            if self.chance.random() < 0.5:
                self.log.append("verify --repair")
                found = batchmill.verify(self.dataset, hash=True, repair=True)
                assert row["output"] in set(found["path"])
            model.due.add(row["input"].removeprefix("in/"))
            self.run(pack=False)  # A pack would not restore the file for earlier versions.

    def enter(self):
        """Make the folder, the step and its library those of this process."""
        os.chdir(self.folder)
        sys.path.insert(0, str(self.folder / "site-packages"))

    def execute(self, options, *, points=None):
        self.enter()
        self.inputs.write_manifest(self.model.listed)
        if points:
            points.watch()
        flags = {
            "allow_missing": True,
            "accept_change": options.accept_change,
            "verify_change": 100 * options.verify_change,
            "sample": options.sample,
            "libraries": "count" if options.counts_libraries else "note",
            **self.inputs.options,
            **({"pack": "1MB"} if options.pack else {}),
            **({"partition": self.partition} if self.partition else {}),
        }
        expect = [f"value < {options.expect}"] if options.expect else []
        merge = partial(with_merged_parts, many=self.many)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run_module, "with_merged_parts", merge)
            self._run_job(options, flags, expect)

    def _run_job(self, options, flags, expect):
        if options.is_update:
            update(self.dataset, cores=1)
            return
        run_job(
            "m.csv", "letters:step", self.dataset, factor=self.model.factor, force=options.force,
            prune=options.prune, prune_failed=options.prune_failed,
            keep_versions=options.keep_versions, num_workers=1, cores=1, batch_size=2,
            policy=FailurePolicy(
                retries=self.model.retries, expect=expect, stop_after_same=options.stop_after_same
            ),
            options=flags,
        )  # fmt: skip

    def finish(self, options):
        """Let the model run, too. Return what the run must have executed."""
        ledger = open_ledger(self.dataset)
        numbers = [version.number for version in ledger.snapshots.versions()]
        last, self.last_run = self.last_run, ledger.runs()[-1]
        recorded = ledger.state().of_run(self.last_run).names.to_pylist()
        published = [number for number in numbers if number > last]
        ran = self.model.run(options, published, {name.removeprefix("in/") for name in recorded})
        results = {
            name: record
            for name in self.model.last_manifest
            if (record := self.model.records.get(name)) and record.outcome == "ok"
        }
        self.results |= dict.fromkeys(published, (results, self.step()))
        return ran

    # Other commands

    def retry(self):
        expected = {f"in/{name}" for name in self.model.retry()}
        assert set(batchmill.retry(self.dataset)) == expected

    def retry_where(self):
        least = self.chance.randint(10, 40)
        expected = {f"in/{name}" for name in self.model.retry_where(least)}
        where = f"value >= {least}"
        if not self.model.shown:  # There is no table, or one without the column.
            with suppress(OptionError):
                assert batchmill.retry(self.dataset, where=where) == []
            return
        assert set(batchmill.retry(self.dataset, where=where)) == expected

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

    def tidy_the_ledger(self):
        """Forget earlier runs, and merge parts soon, as a run does after hundreds of others."""
        self.many = self.chance.choice([1, 2, 4, MANY_PARTS])
        forget_runs(open_ledger(self.dataset), self.last_run, kept=self.chance.randint(1, 3))

    def export(self):
        """Each row becomes a sample with the content of its output."""
        if self.model.kind == "class" or not self.model.shown:
            return
        out = self.folder / "export"
        batchmill.export(self.dataset, out, to="webdataset", num_workers=1)
        assert batchmill.verify_export(out).empty
        found = []
        for shard in sorted(out.glob("*.tar")):
            with tarfile.open(shard) as archive:
                names = [name for name in archive.getnames() if name.endswith(".txt")]
                found += [archive.extractfile(name).read().decode() for name in names]
        assert found == [row.output for row in self.model.shown]

    def reproduce(self):
        """The bundle of a failed input shows its error."""
        failed = [n for n in self.model.failures() if self.model.files.get(n, "")[:3] == "bad"]
        failed = [n for n in failed if self.model.records[n].key.content == self.model.files[n]]
        if failed:
            name, bundle = self.chance.choice(failed), self.folder / f"{len(self.log)}.zip"

            def write():
                self.enter()
                write_reproduction(self.dataset, f"in/{name}", bundle)

            assert in_child(write) == 0
            unpacked = bundle.with_suffix("")
            zipfile.ZipFile(bundle).extractall(unpacked)
            ran = subprocess.run(
                [sys.executable, "run.py"],
                cwd=unpacked,
                env={**os.environ, "PYTHONPATH": str(self.folder / "site-packages")},
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert ran.returncode == 1, ran.stdout + ran.stderr
            assert f"ValueError: {self.model.files[name]}" in ran.stdout

    def prove(self):
        """Make the results of a version again. Only those kept on the user's word differ."""
        model, file = self.model, self.folder / "proof.json"
        version = self.chance.choice([*model.versions, max(model.versions, default=0)])
        if not version or not self.results[version][0]:
            return
        results, step = self.results[version]
        self.inputs.clear_log()

        def write():
            self.enter()
            proof = next(prove(self.dataset, ProofOptions(version=version)))
            assert record_proof(proof) == ""
            file.write_text(json.dumps(asdict(proof)))

        assert in_child(write) == 0
        proof = json.loads(file.read_text())
        is_here = step[1:] == self.step()[1:]
        made = {
            name: record
            for name, record in results.items()
            if is_here and record.key[1:] == step and record.key.content == model.files.get(name)
        }
        different = {n for n, one in made.items() if model.rows(one.result) != model.rows(one.key)}
        assert set(self.inputs.executed()) == made.keys()
        assert proof["results"] == proof["sample"] == len(results)
        assert sum(proof["not_made"].values()) == len(results) - len(made)
        assert proof["different"] == len(different)
        assert proof["table_fault"] == ""

    def review(self):
        """Execute all unchanged inputs with a param, and compare. The dataset does not change."""
        model, file = self.model, self.folder / "review.json"
        factor = self.recorded[1] + self.chance.randint(0, 1)
        now = {name: Key(model.files.get(name), factor, *self.step()[1:]) for name in NAMES}
        outcomes = {name: model.outcome_of(now[name].content) for name in NAMES}
        known = {n: model.records[n] for n in model.last_manifest if n in model.records}
        kept = {n: one for n, one in known.items() if one.outcome == "ok"}
        kept = {n: one for n, one in kept.items() if one.key.content == model.files.get(n)}
        failed = {n for n, one in known.items() if one.outcome != "ok" and n in model.files}
        self.inputs.clear_log()

        def write():
            self.enter()
            found = batchmill.review(self.dataset, params={"factor": factor}, sample=100)
            assert f'bad">{found.verdict}' in found.html() or found.is_equal
            file.write_text(json.dumps(asdict(found)))

        if kept or failed:
            assert in_child(write) == 0
            found = json.loads(file.read_text())
            assert found["sample"] == found["inputs"] == len(kept) + len(failed)
            different = [
                n for n, one in kept.items() if model.rows(one.result) != model.rows(now[n])
            ]
            assert found["different"] == len(different)
            shown = [one["input"] for one in found["most_changed"]]
            assert sorted(shown) == sorted(f"in/{n}" for n in different)
            assert found["appeared"] == {}
            assert {*found["vanished"]} == {f"in/{n}" for n in failed if outcomes[n] == "ok"}

    # Checks

    def compare(self):
        model, store = self.model, open_store(self.dataset)
        table = batchmill.metadata(self.dataset)
        assert rows_of(table, partial(read_plainly, store)) == named(model.shown)
        self.compare_partitions(table)
        outcomes = {f"in/{name}": kind for name, kind in model.outcomes().items()}
        status = batchmill.status(self.dataset)
        assert outcome_column(status.outcomes) == outcomes
        assert {kind: n for kind, n in status.summary.outcomes.items() if n} == model.counts()
        allowed = self.chance.randint(0, len(NAMES))
        policy = FailurePolicy(max_failures=allowed)
        failed = sum(count for kind, count in model.counts().items() if kind != "ok")
        assert status.summary.has_few_failures(policy) == (failed <= allowed)
        found = outcome_column(batchmill.failures(self.dataset))
        assert found == {f"in/{name}": kind for name, kind in model.failures().items()}
        listed = csv.DictReader(io.StringIO(store.read("failures.csv").decode()))
        shown = {f"in/{name}": kind for name, kind in model.shown_failures.items()}
        assert {row["input"]: row["outcome"] for row in listed} == shown
        ledger = open_ledger(self.dataset)
        assert [v.number for v in ledger.snapshots.versions()] == list(model.versions)
        assert ledger.snapshots.names() == model.names
        assert versions_in(ledger.state()).get("ink", {}) == model.results_by_library()
        for number, rows in model.versions.items():
            table = batchmill.metadata(self.dataset, version=number)
            assert rows_of(table, partial(read_plainly, store)) == named(rows), number
            assert examine(ledger, version=number, hash_files=True) == []
        if model.versions:
            self.compare_versions(*self.chance.choices(list(model.versions), k=2))
        different = [one for one in faults(self.dataset) if not getattr(one, "is_warning", False)]
        if not model.is_published:
            different = [one for one in different if getattr(one, "kind", "") != "unpublished"]
        assert different == [], different

    def compare_versions(self, before, after):
        old, new = ({}, {})
        for number, found in ((before, old), (after, new)):
            for row in named(self.model.versions[number]):
                found.setdefault(row.input, []).append(row._replace(stale=False))
        difference = batchmill.diff(self.dataset, before, after)
        assert set(difference.added) == new.keys() - old.keys()
        assert set(difference.removed) == old.keys() - new.keys()
        changed = [name for names in difference.changed.values() for name in names]
        assert sorted(changed) == [n for n in sorted(old.keys() & new.keys()) if old[n] != new[n]]

    def compare_partitions(self, table):
        """An input keeps its partition for as long as it has a record."""
        if self.partition:
            found = dict(zip(table["input"], table["partition"], strict=True))
            assert set(found.values()) <= PARTITIONS
            known = {f"in/{name}" for name in self.model.records}
            earlier = {name: where for name, where in self.partitions.items() if name in known}
            assert found == found | {name: earlier[name] for name in found if name in earlier}
            self.partitions = earlier | found
        else:
            assert "partition" not in table

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
        self.inputs.clear_log()
        assert in_child(partial(self.execute, Options())) == 0
        expected, found = contents(self.dataset), contents(updated)
        skipped = set()
        if open_store(updated).names("packs"):  # Only this table has the addresses in packs.
            skipped.add("metadata.parquet")
        if self.partition:  # Inputs that came later were assigned later.
            skipped |= {"metadata.parquet", "metadata.csv"}
        assert {n: data for n, data in found.items() if n not in skipped} == {
            n: data for n, data in expected.items() if n not in skipped
        }


COMMANDS = {
    Sequence.change_inputs: 4,
    Sequence.touch: 1,
    Sequence.swap: 1,
    Sequence.withdraw: 2,
    Sequence.lose: 1,
    Sequence.list_again: 2,
    Sequence.rename: 1,
    Sequence.edit_the_step: 1,
    Sequence.edit_the_form: 0.5,
    Sequence.edit_a_remark: 0.5,
    Sequence.upgrade: 1,
    Sequence.change_a_param: 1,
    Sequence.run: 7,
    Sequence.run_a_sample: 1,
    Sequence.run_with_an_expectation: 1.5,
    Sequence.run_that_may_stop: 1.5,
    Sequence.update: 1.5,
    Sequence.run_after_an_edit: 2,
    Sequence.run_and_kill: 4,
    Sequence.run_and_kill_at_a_moment: 2,
    Sequence.damage: 1,
    Sequence.retry: 2,
    Sequence.retry_where: 1,
    Sequence.keep: 2,
    Sequence.drop: 1,
    Sequence.tidy_the_ledger: 1.5,
    Sequence.export: 0.5,
    Sequence.reproduce: 0.2,
    Sequence.prove: 1,
    Sequence.review: 1,
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
            read(row["output"], row.get("pack")) if "output" in row else "",
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
    for number in range(max(1, PER_PART // 10)):  # Each takes half a minute.
        play(tmp_path / str(number), f"{bucket}/out-{number}", f"{seed}-{number}")


def play(folder, dataset, seed):
    """Play one sequence. An error names its seed and its commands.

    In half of the sequences, all tables are in files, as those of many inputs.
    """
    sequence = Sequence(folder, dataset, seed)
    try:
        with small_tables() if sequence.chance.random() < 0.5 else nullcontext():
            sequence.play(LENGTH)
    except BaseException as error:
        error.add_note("\n".join(sequence.log))
        raise
