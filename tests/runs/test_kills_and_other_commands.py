"""After a run was killed, another command than the same run comes next."""

import sys
import zipfile

import pytest
from harness.jobs import run_job

import batchmill
from batchmill.api.jobs.reproduction import write_reproduction
from batchmill.core.ledger.open import open_ledger
from batchmill.core.ledger.snapshots import Snapshots
from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.datasets.maintenance.verify import examine
from batchmill.datasets.publishing.run_summary import adoption_lines
from batchmill.runs import run as run_module

pytestmark = pytest.mark.slow

STEP = """
def copy(source, out):
    text = source.read_text()
    if text.startswith("bad"):
        raise ValueError(text)
    (out / "a.txt").write_text(text)
    return {"output": "a.txt", "word": text}
"""


class KilledError(BaseException):
    """Ends a run without what runs do after an error."""


class Job:
    """A job over the folder `in`, whose runs may be killed in a method of the product."""

    def __init__(self, folder):
        self.folder = folder
        self.module = f"copying_{folder.name}"  # Each test has a module of its own.
        self.write_step(STEP)
        (folder / "in").mkdir()

    @property
    def ledger(self):
        return open_ledger("out")

    def write_step(self, text):
        (self.folder / f"{self.module}.py").write_text(text)
        sys.modules.pop(self.module, None)

    def put(self, name, text):
        (self.folder / "in" / name).write_text(text)

    def run(self, **options):
        return run_job("in", f"{self.module}:copy", "out", num_workers=1, cores=1, **options)

    def killed(self, owner, method, **options):
        def die(*_):
            raise KilledError

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, method, die)
            with pytest.raises(KilledError):
                self.run(**options)


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return Job(tmp_path)


def test_a_repair_keeps_the_results_that_the_next_run_keeps(job):
    job.put("a", "a1")
    job.run()
    for text in ("b1", "bad"):
        job.put("b", text)
        job.killed(run_module, "advance")
    assert "unreferenced" not in {found.kind for found in examine(job.ledger, repair=True)}
    job.run()
    assert examine(job.ledger) == []
    assert len(batchmill.metadata("out")) == 2


def test_a_version_without_its_files_cannot_be_kept(job):
    for text in ("a1", "a2"):
        job.put("a", text)
        job.run()
    job.put("a", "a3")
    job.killed(Snapshots, "remove")
    for options in ({}, {"keep_versions": 5}):
        if options:
            job.run(**options)
        numbers = [one.number for one in job.ledger.snapshots.versions()]
        assert [examine(job.ledger, version=number) for number in numbers] == [[]] * len(numbers)


def test_a_run_that_publishes_nothing_leaves_a_complete_table(job):
    job.put("a", "a1")
    job.run()
    job.put("a", "a2")
    job.killed(Snapshots, "record")
    job.put("a", "a3")
    job.run(policy=FailurePolicy(expect=("word != 'a3'",)))
    assert len([*batchmill.open_dataset("out", load="text")]) == 1


def test_an_adoption_of_a_killed_run_is_not_counted(job):
    job.put("a", "a1")
    job.run()
    job.write_step(STEP.replace('"a.txt")', '"a" + ".txt")'))
    options = {"accept_change": True}
    job.killed(Snapshots, "record", options=options)
    job.run(options=options)
    assert len(adoption_lines(job.ledger)) == 1


def test_a_stopped_reproduction_leaves_no_file(job, monkeypatch):
    job.put("a", "bad")
    job.run()

    def stop(*_):
        raise KeyboardInterrupt

    bundle = job.folder / "b.zip"
    monkeypatch.setattr(zipfile.ZipFile, "writestr", stop)
    with pytest.raises(KeyboardInterrupt):
        write_reproduction("out", "a", bundle)
    assert not bundle.exists()
