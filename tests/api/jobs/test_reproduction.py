"""The bundle of an input shows the same error in another folder."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from harness.jobs import run_job

import batchmill
from batchmill.api.jobs.reproduction import write_reproduction
from batchmill.cli.main import main
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.planning.run_spec import read_spec
from batchmill.core.storage import LocalStore
from batchmill.datasets.publishing.failure_groups import read_failures
from batchmill.errors import OptionError

pytestmark = pytest.mark.slow

STEP = """
from reproduced.inner import check
KEY = "secret-value-0123"

def step(source, row, level=0):
    print("reading", source.name)
    check(source.read_text(), row["label"], level)
"""
INNER = """
def check(text, label, level):
    if text.startswith("bad"):
        raise ValueError(f"{text} {label} {level}")
"""


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """A dataset with a failed input, whose step is in a package."""
    work = tmp_path / "work"
    (work / "reproduced").mkdir(parents=True)
    monkeypatch.chdir(work)
    monkeypatch.setenv("SERVICE_TOKEN", "secret-value-0123")
    (work / "reproduced" / "__init__.py").write_text("")
    (work / "reproduced" / "outer.py").write_text(STEP)
    (work / "reproduced" / "inner.py").write_text(INNER)
    (work / "a.txt").write_text("good")
    (work / "b.txt").write_text("bad header")
    (work / "m.csv").write_text("input,label\na.txt,cat\nb.txt,dog\n")
    policy = FailurePolicy(retries=0)
    run_job("m.csv", "reproduced.outer:step", "out", policy=policy, level=3)
    return "out"


def test_a_bundle_shows_the_same_error_elsewhere(dataset, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", dataset, "b.txt", "-o", str(tmp_path / "b.zip")])
    assert ended.value.code == 0
    assert "python run.py" in capsys.readouterr().out
    other = tmp_path / "other"
    with zipfile.ZipFile(tmp_path / "b.zip") as bundle:
        bundle.extractall(other)
    Path("reproduced").rename("gone")
    ran = subprocess.run(
        [sys.executable, "run.py"], cwd=other, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 1, ran.stderr
    assert "ValueError: bad header dog 3" in ran.stdout
    assert str(other / "step" / "reproduced" / "inner.py") in ran.stdout
    assert "ValueError: bad header dog 3" in (other / "outcome.txt").read_text()
    assert json.loads((other / "job.json").read_text())["params"] == {"level": 3}
    assert "pyarrow==" in (other / "versions.txt").read_text()
    assert "secret-value-0123" not in (other / "step" / "reproduced" / "outer.py").read_text()


def test_a_bundle_stays_valid_with_urls_and_without_secrets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEED_KEY", "1234567")
    monkeypatch.setenv("NAME_KEY", "recording")
    source = 'def step(source, url, seed, also):\n    """As in https://host/a?b=c#d"""\n    1 / 0\n'
    Path("documented.py").write_text(source)
    Path("recording.txt").write_text("a")
    Path("m.csv").write_text("input\nrecording.txt\n")
    params = {"url": "https://host/a?b=c", "seed": 1234567, "also": ["https://host/a?token=b"]}
    policy = FailurePolicy(retries=0)
    run_job("m.csv", "documented:step", "out", policy=policy, **params)
    write_reproduction("out", "recording.txt", tmp_path / "b.zip")
    with zipfile.ZipFile(tmp_path / "b.zip") as bundle:
        job = json.loads(bundle.read("job.json"))
        assert bundle.read("step/documented.py").decode() == source
        assert bundle.read(f"input/{job['file']}") == b"a"
    assert job["params"] == params | {"also": ["https://***host/a"]}


@pytest.mark.parametrize("time", [1, 2**33])
def test_a_bundle_has_an_input_of_any_time(dataset, tmp_path, time):
    os.utime("b.txt", (time, time))
    write_reproduction(dataset, "b.txt", tmp_path / "b.zip")
    with zipfile.ZipFile(tmp_path / "b.zip") as bundle:
        assert bundle.read("input/b.txt") == b"bad header"


def test_a_bundle_has_an_input_that_is_in_a_pack(dataset, tmp_path):
    Path("copying.py").write_text(
        "def step(source, out):\n"
        "    (out / source.name).write_text(source.read_text())\n"
        "    return {'output': source.name, 'label': 'x'}\n"
    )
    run_job("m.csv", "copying:step", "copies", options={"pack": "1MB"})
    policy = FailurePolicy(retries=0)
    run_job("copies", "reproduced.outer:step", "again", policy=policy)
    (failed,) = batchmill.status("again").failures["input"]
    write_reproduction("again", failed, tmp_path / "b.zip")
    with zipfile.ZipFile(tmp_path / "b.zip") as bundle:
        assert bundle.read("input/b.txt") == b"bad header"


def test_a_bundle_has_the_further_files_that_are_in_packs(dataset, tmp_path):
    Path("painting.py").write_text(
        "from batchmill import File\n"
        "def step(source, out):\n"
        "    (out / 'a.txt').write_text(source.read_text())\n"
        "    (out / 'mask.txt').write_text('mask of ' + source.name)\n"
        "    return {'output': 'a.txt', 'mask': File('mask.txt')}\n"
        "def fail(source, mask): raise ValueError(mask.read_text())\n"
    )
    run_job("m.csv", "painting:step", "pairs", options={"pack": "1MB"})
    policy = FailurePolicy(retries=0)
    run_job("pairs", "painting:fail", "again", policy=policy, options={"file_columns": "mask"})
    failed = batchmill.status("again").failures
    for name, message in zip(failed["input"], failed["message"], strict=True):
        write_reproduction("again", name, tmp_path / "b.zip")
        with zipfile.ZipFile(tmp_path / "b.zip") as bundle:
            assert bundle.read("input/mask/mask.txt").decode() == message
        (tmp_path / "b.zip").unlink()


def test_an_input_without_an_outcome_or_a_file_is_rejected(dataset, tmp_path):
    with pytest.raises(OptionError, match="has no outcome of this input"):
        write_reproduction(dataset, "c.txt", tmp_path / "b.zip")
    Path("b.txt").unlink()
    with pytest.raises(OptionError, match="no such file"):
        write_reproduction(dataset, "b.txt", tmp_path / "b.zip")
    (tmp_path / "b.zip").write_text("mine")
    with pytest.raises(OptionError, match="exists"):
        write_reproduction(dataset, "a.txt", tmp_path / "b.zip")


def test_a_bundle_has_the_further_files_of_an_input(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("overlaid.py").write_text(
        "def step(source, mask):\n"
        "    raise ValueError(source.read_text() + mask.parent.name + mask.read_text())\n"
    )
    Path("masks").mkdir()
    Path("masks/a.txt").write_text("b")
    Path("a.txt").write_text("a")
    Path("m.csv").write_text("input,mask\na.txt,masks/a.txt\n")
    options = {"file_columns": "mask"}
    run_job("m.csv", "overlaid:step", "out", policy=FailurePolicy(retries=0), options=options)
    ledger = Ledger(LocalStore("out"))
    (group,) = read_failures(ledger.state(), read_spec(ledger, 1)).groups
    assert f"--file mask={tmp_path / 'masks' / 'a.txt'}" in group.command
    write_reproduction("out", "a.txt", tmp_path / "b.zip")
    with zipfile.ZipFile(tmp_path / "b.zip") as bundle:
        bundle.extractall(tmp_path / "other")
    ran = subprocess.run(
        [sys.executable, "other/run.py"], capture_output=True, text=True, timeout=120
    )
    assert "ValueError: amaskb" in ran.stdout, ran.stderr


CONFIGURED = """
import json
from pathlib import Path
LIMITS = Path(__file__).parent / "conf/limits.json"

def step(source):
    raise ValueError(f"{source.name} is above {json.loads(LIMITS.read_text())}")
"""


@pytest.mark.parametrize("package", ["", "configured"])
def test_a_bundle_has_the_data_files_of_the_step(tmp_path, monkeypatch, package):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / package
    (folder / "conf").mkdir(parents=True)
    (folder / "conf" / "limits.json").write_text("7")
    (folder / "conf" / "other.bin").write_bytes(bytes(11 * 2**20))
    (folder / ".env").write_text("TOKEN=x")
    (folder / "steps.py").write_text(CONFIGURED)
    (tmp_path / "a.txt").write_text("a")
    module = f"{package}.steps" if package else "steps"
    (tmp_path / "m.csv").write_text("input\na.txt\n")
    run_job("m.csv", f"{module}:step", "out", policy=FailurePolicy(retries=0))
    write_reproduction("out", "a.txt", tmp_path / "b.zip")
    with zipfile.ZipFile(tmp_path / "b.zip") as bundle:
        bundle.extractall(tmp_path / "other")
    step = tmp_path / "other" / "step" / package
    names = {str(one.relative_to(step)) for one in step.rglob("*") if one.is_file()}
    assert names == {"steps.py", "conf/limits.json"}
    left_out = (
        f"Left out: {package}/conf/other.bin (11.0 MiB)"
        in (tmp_path / "other" / "README.txt").read_text()
    )
    assert left_out == bool(package)
    assert "ValueError: a.txt is above 7" in run_bundle(tmp_path / "other", code=1)
    (step / "conf" / "limits.json").unlink()
    another = "Recorded: failed ValueError. Here: failed FileNotFoundError."
    assert another in run_bundle(tmp_path / "other", code=2)
    (step / "steps.py").unlink()
    assert "The step does not start" in run_bundle(tmp_path / "other", code=2)


def run_bundle(folder, code):
    """Run an unpacked bundle. Return what it prints."""
    ran = subprocess.run(
        [sys.executable, "run.py"], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == code, ran.stderr
    return ran.stdout


@pytest.mark.parametrize(
    "command", [["reproduce", "out", "b.txt"], ["verify", "out", "--execute", "1"]]
)
def test_a_folder_that_does_not_exist_is_reported_before_any_work(dataset, command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*command, "--output", "nowhere/x"])
    assert ended.value.code == 2
    assert "there is no folder nowhere. Create it." in capsys.readouterr().err
