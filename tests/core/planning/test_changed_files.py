"""A run reads only files that may have changed, and executes only inputs that have changed."""

import os
from pathlib import Path

import pytest
from harness.jobs import job_of, run_job

from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.planning import changed_files
from batchmill.core.planning.prepare import prepare

STEP = """
def copy(source, out, mask=None):
    assert source.name != "c.txt"
    for name in ("1", "2"):
        (out / name).write_text("output")
        yield {"output": name}
"""
OPTIONS = {"file_columns": "mask"}
A, B, OUTPUT = ["a.mask", "a.txt"], ["b.mask", "b.txt"], "out/files/b*/2"


@pytest.mark.parametrize(
    ("file", "text", "is_read", "reasons", "touched"),
    [
        ("m.csv", None, [], {}, []),
        ("a.txt", None, A, {}, ["a.txt"]),
        ("b.mask", None, B, {}, ["b.txt"]),
        ("c.txt", None, ["c.txt"], {}, ["c.txt"]),
        ("a.txt", "another", A, {"a.txt": "changed"}, []),
        ("b.mask", "another", B, {"b.txt": "changed"}, []),
        ("c.txt", "another", ["c.txt"], {"c.txt": "changed"}, []),
        ("a.txt", "longer content", [], {"a.txt": "changed"}, []),
        ("b.mask", "unreadable", B, {"b.txt": "changed"}, []),
        (OUTPUT, "longer output", [], {"b.txt": "damaged"}, []),
        (OUTPUT, "", [], {"b.txt": "damaged"}, []),
    ],
)
def test_only_inputs_with_changed_files_are_executed(
    tmp_path, monkeypatch, file, text, is_read, reasons, touched
):
    """Write a text to a file of the dataset or its inputs, or only set its time."""
    monkeypatch.chdir(tmp_path)
    Path("copying.py").write_text(STEP)
    for name in (*A, *B, "c.txt"):
        Path(name).write_text("content")
    Path("m.csv").write_text("input,mask\na.txt,a.mask\nb.txt,b.mask\nc.txt,\n")
    policy = FailurePolicy(retries=0)
    summary = run_job("m.csv", "copying:copy", "out", policy=policy, options=OPTIONS)
    assert summary.outcomes == {"ok": 2, "failed": 1}
    (path,) = tmp_path.glob(file)
    os.utime(path, (1, 1)) if text is None else path.write_text(text)
    read = []

    def content_of(path):
        read.append(os.path.basename(path))
        if Path(path).read_text() == "unreadable":
            raise PermissionError
        return real(path)

    real = changed_files.content_of
    monkeypatch.setattr(changed_files, "content_of", content_of)
    plan = prepare(job_of("m.csv", "copying:copy", "out", **OPTIONS)).plan
    found = plan.pending.select(["input", "reason"]).to_pylist()
    assert {row["input"]: row["reason"] for row in found} == reasons
    assert plan.touched.to_pylist() == touched
    assert sorted(read) == is_read
