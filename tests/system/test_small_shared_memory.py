"""A run works with 64 MB of shared memory, the default of a Kubernetes pod."""

import json
import sys

import pytest
from harness.gated import make_inputs

IN_A_POD = 'mount -t tmpfs -o size=64M none /dev/shm && exec "$@"'


@pytest.mark.parametrize("workers", ["8", pytest.param("1", marks=pytest.mark.long)])
def test_a_run_with_64_mb_of_shared_memory(bare_shell, work, workers):
    make_inputs(work)
    done = bare_shell.run(
        *("unshare", "--mount", "sh", "-c", IN_A_POD, "sh"),
        *(sys.executable, "-m", "batchmill", "run", "in", "--step", "slow:step", "-o", "out"),
        *("--param", f"log={work}/log", "--num-workers", workers, "--batch-size", "2", "--json"),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["outcomes"] == {"ok": 60}
