"""The names that `import batchmill` provides, and the modules that it must not load."""

import pickle
import subprocess
import sys

import pytest
from harness.jobs import run_job

import batchmill
from batchmill.core.planning.job import plain_params


def test_the_public_names():
    assert batchmill.__all__ == sorted(batchmill.__all__)
    assert set(batchmill.__all__) == {
        "BatchmillError",
        "CancelledError",
        "LedgerError",
        "Manifest",
        "ManifestError",
        "OptionError",
        "Padded",
        "PlanResult",
        "RunResult",
        "TryResult",
        "VersionDiff",
        "ExportResult",
        "File",
        "diff",
        "export",
        "failures",
        "graph",
        "infer",
        "keep",
        "metadata",
        "plan",
        "retry",
        "review",
        "run",
        "status",
        "try_one",
        "update",
        "verify",
        "verify_export",
        "versions",
        "RetryAfter",
        "RunError",
        "SampleDataset",
        "ServiceError",
        "StepError",
        "StoreError",
        "WorkerError",
        "load_manifest",
        "open_dataset",
        "pad_collate",
    }
    for name in batchmill.__all__:
        assert getattr(batchmill, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = batchmill.nope


def test_the_import_loads_no_heavy_library():
    script = "import sys, batchmill, batchmill.cli.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    loaded = set(done.stdout.decode().split())
    assert not loaded & {"torch", "pandas", "prefect", "ray", "pyarrow", "numpy"}


def test_the_import_of_the_blocks_is_light():
    """Prefect's server imports them, and the first input of a run waits for this server."""
    script = (
        "import sys, prefect\n"
        "calls = 0\n"
        "def count(frame, event, argument):\n"
        "    global calls\n"
        "    calls += event == 'call'\n"
        "sys.setprofile(count)\n"
        "import batchmill.blocks\n"
        "sys.setprofile(None)\n"
        "print(calls, *sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    calls, *loaded = done.stdout.decode().split()
    assert not set(loaded) & {"torch", "pandas", "ray", "pyarrow", "numpy"}
    assert int(calls) < 120_000  # These are 75,000 now, a tenth of a second.


def exit_code_and_modules(*arguments):
    """Execute a command in a new process."""
    script = (
        "import sys\n"
        "from batchmill.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: print(end.code, *sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True)
    code, *loaded = done.stdout.decode().splitlines()[-1].split()
    return code, set(loaded)


def test_trying_a_light_step_loads_neither_prefect_nor_ray_nor_torch(words):
    step = "batchmill.steps.words:split"
    code, loaded = exit_code_and_modules("try", str(words / "a.txt"), "--step", step, "--json")
    assert code == "0"
    assert not loaded & {"torch", "pandas", "prefect", "ray"}


@pytest.mark.parametrize("command", ["status", "failures", "retry"])
def test_a_look_at_a_dataset_loads_neither_prefect_nor_ray_nor_torch(words, tmp_path, command):
    run_job(words, "batchmill.steps.words:split", tmp_path / "out")
    code, loaded = exit_code_and_modules(command, str(tmp_path / "out"))
    assert code == "0"
    assert not loaded & {"torch", "prefect", "ray"}


def test_a_run_whose_failures_are_all_known_loads_neither_prefect_nor_ray(words, tmp_path):
    (words / "b.txt").write_bytes(b"\xff")
    job = [words, "batchmill.steps.words:split", tmp_path / "out"]
    run_job(*job)
    manifest, step, output = map(str, job)
    code, loaded = exit_code_and_modules("run", manifest, "--step", step, "--output", output)
    assert code == "1"
    assert not loaded & {"prefect", "ray"}


@pytest.mark.parametrize(
    "error",
    [
        batchmill.ManifestError("m.csv", ["line 2: a", "line 3: b"]),
        batchmill.StoreError("/x", "No space left"),
        batchmill.StepError("step x: y"),
        batchmill.RunError("2 failed"),
    ],
)
def test_errors_survive_pickling(error):
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (type(error), str(error))


@pytest.mark.parametrize("value", [{1: "a", "1": "b"}, [{None: 1}], {"a": ({2: 3},)}, "a\udc80"])
def test_params_that_json_would_change_or_cannot_hold_are_refused(value):
    with pytest.raises(batchmill.OptionError, match=r"'table' is a .* JSON"):
        plain_params({"table": value})


def test_a_set_of_texts_as_a_param_has_one_order():
    words = [f"word {number}" for number in range(20)]
    assert plain_params({"words": set(words)}) == {"words": sorted(words)}


def test_try_one_gives_params_as_a_run_does(tmp_path):
    (tmp_path / "a").write_text("")
    tried = batchmill.try_one(tmp_path / "a", lambda s, pair: [repr(pair)], params={"pair": (1, 2)})
    assert tried.rows == [{"value": ["[1, 2]"]}]
