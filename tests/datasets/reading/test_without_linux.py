"""A dataset is read where Linux' own calls are missing, as on macOS."""

import subprocess
import sys

from harness.jobs import run_job

# macOS has neither these calls nor /proc. The file systems of the test stay those of Linux.
_READ = """
import builtins, os, sys

for name in (
    "copy_file_range", "eventfd", "getxattr", "listxattr", "memfd_create", "pidfd_open", "pipe2",
    "posix_fadvise", "posix_fallocate", "preadv2", "sched_getaffinity", "sched_setaffinity",
    "setns", "setxattr", "splice", "unshare", "O_DIRECT", "O_PATH", "O_TMPFILE",
):
    if hasattr(os, name):
        delattr(os, name)
opened = builtins.open


def without_proc(file, *arguments, **options):
    if str(file).startswith("/proc/"):
        raise FileNotFoundError(2, "No such file or directory", str(file))
    return opened(file, *arguments, **options)


builtins.open = without_proc
import batchmill
from batchmill.cli.main import main

samples = batchmill.open_dataset("out")
print(len(samples), samples[0].id)
print(batchmill.status("out").counts, len(batchmill.failures("out")))
print(len(batchmill.verify("out")))
print(batchmill.export("out", "shards", to="webdataset").samples)
main(["report", "out"])
"""


def test_a_dataset_can_be_read_exported_and_shown(words, tmp_path):
    run_job(words, "steps_under_test:copy", tmp_path / "out")
    command = [sys.executable, "-c", _READ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    report = tmp_path / "out" / "report.html"
    *lines, shown = done.stdout.split("\n")[:-1]
    assert [line.partition(" files")[0] for line in lines] == ["5", "{'ok': 5} 0", "0", "5"]
    assert shown == str(report)
