"""A full disk costs no input: the run stops, and the next run completes the dataset."""

import stat
import subprocess

import numpy as np
import pytest
from harness.jobs import run_job
from harness.live import clean_environment, shell_in
from PIL import Image

from batchmill import StoreError
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.storage import LocalStore
from batchmill.datasets.maintenance.verify import verify

STEP = "batchmill.steps.images:resize"
WORDS = "batchmill.steps.words:split"


@pytest.fixture
def disk(tmp_path):
    """A file system with space for five outputs, and 1.2 MB more."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8500k", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def pictures(tmp_path):
    """Ten pictures of noise. Each output has more than a megabyte."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    noise = np.random.default_rng(0)
    for number in range(10):
        pixels = noise.integers(0, 256, (700, 700, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


def test_a_run_on_a_full_disk_stops_and_can_be_resumed(disk, pictures):
    with pytest.raises(StoreError, match=rf"{disk}\S*: No space left on device"):
        run_job(pictures, STEP, disk / "out", width=700, height=700, num_workers=1)
    ledger = Ledger(LocalStore(disk / "out"))
    assert set(ledger.records(["outcome"])["outcome"].to_pylist()) <= {"ok"}
    subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
    summary = run_job(pictures, STEP, disk / "out", width=700, height=700, num_workers=1)
    assert summary.outcomes == {"ok": 10}
    assert list(verify(ledger, hash_files=True)) == []


def test_a_full_disk_of_prefect_is_reported(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("word")
    home = tmp_path / "home"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", home], check=True)
    try:
        environment = clean_environment(home)
        with shell_in(tmp_path, environment) as shell:
            done = shell.batchmill(
                "run", "in", "--step", "batchmill.steps.words:split", "-o", "out"
            )
        database = (home / "prefect.db").stat()
    finally:
        subprocess.run(["umount", "--lazy", home], check=True)
    assert stat.S_IMODE(database.st_mode) == 0o600
    assert done.returncode == 2
    assert f"the disk of {home} is full" in done.stderr
    assert "Traceback" not in done.stderr
