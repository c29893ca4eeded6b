"""The output and the exit codes of commands that run in this process."""

import io
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pandas as pd
import psutil
import pytest
from harness.jobs import run_job
from harness.live import STEP_MODULES
from rich.console import Console

from batchmill.cli.console import PlainConsole
from batchmill.cli.main import make_app
from batchmill.cli.run_console import showing_progress
from batchmill.cli.status import executed_text
from batchmill.core.ledger.open import open_ledger, open_output
from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.datasets.publishing.run_summary import summarise

SPLIT = "batchmill.steps.words:split"


def test_try_shows_rows_and_files(command, words, tmp_path, monkeypatch):
    monkeypatch.chdir(STEP_MODULES)
    keep = tmp_path / "kept"
    code, out, _ = command(
        "try", words / "a.txt", "--step", "steps_under_test:copy", "--param", "times=2",
        "--keep", keep,
    )  # fmt: skip
    assert code == 0
    assert "a.txt: ok" in out
    assert "2 rows" in out
    assert "2 files, 12 bytes, kept in" in out
    assert sorted(os.listdir(keep)) == ["0.txt", "1.txt"]


def test_try_shows_one_row_as_a_line_for_each_value(command, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wide.py").write_text(
        "def step(source):\n    return {f'column {n}': n for n in range(30)}\n"
    )
    code, out, _ = command("try", words / "a.txt", "--step", "wide:step")
    assert code == 0
    lines = [line.replace("│", " ").split() for line in out.splitlines()]
    assert ["column", "29", "29"] in lines


def test_equal_tracebacks_are_printed_once(command, words, tmp_path, monkeypatch):
    (tmp_path / "refusing.py").write_text(
        "def step(source):\n    raise ValueError(f'bad header of {source.name!r}')\n"
    )
    monkeypatch.chdir(tmp_path)
    run_job(words / "manifest.csv", "refusing:step", "out", policy=FailurePolicy(retries=0))
    _, text, _ = command("failures", "out")
    assert text.count("traceback:") == 1
    assert [line[:5] for line in text.splitlines()[:4]] == ["a.txt", "b.txt", "c.txt", "d.txt"]


def test_try_keeps_its_files_in_an_empty_folder_only(command, words, monkeypatch):
    monkeypatch.chdir(STEP_MODULES)
    monkeypatch.setenv("HOME", str(words))
    before = (words / "a.txt").read_bytes()
    code, _, err = command(
        "try", "~/a.txt", "--step", "steps_under_test:copy", "--keep=~",
    )  # fmt: skip
    assert (code, "contains files. Name a new or empty folder" in err) == (2, True)
    assert sorted(path.name for path in words.iterdir() if path.name == "0.txt") == []
    assert (words / "a.txt").read_bytes() == before
    code, _, _ = command("try", "~/a.txt", "--step", "steps_under_test:copy", "--keep=~/kept")
    assert (code, os.listdir(words / "kept")) == (0, ["0.txt"])


def test_files_are_not_copied_into_a_dataset(command, words, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(STEP_MODULES)
    run_job(words / "manifest.csv", "steps_under_test:copy", tmp_path / "d")
    inside = tmp_path / "d" / "files" / "mine"
    code, _, err = command("files", tmp_path / "d", "a.txt", "-o", inside)
    assert (code, "is inside a dataset" in err) == (2, True)
    code, _, _ = command("files", tmp_path / "d", "a.txt", "--output=~/mine")
    assert (code, os.listdir(tmp_path / "mine")) == (0, ["0.txt"])


def test_too_little_memory_is_reported_in_one_line(command, tmp_path):
    manifest = tmp_path / "m.csv"
    manifest.touch()
    os.truncate(manifest, 64 * 2**30)  # A file without blocks on the disk.
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (32 * 2**30, before[1]))
    try:
        code, _, err = command("plan", manifest, "--step", SPLIT, "--output", tmp_path / "d")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert code == 2
    assert err.startswith("batchmill: there is not enough memory. ")
    assert err.count("\n") == 1


def test_a_thread_without_memory_is_reported_in_one_line(command, words, tmp_path):
    run_job(words / "manifest.csv", SPLIT, tmp_path / "d")
    for path in words.glob("*.txt"):  # Threads read files whose time has changed.
        os.utime(path, (1, 1))
    before = threading.stack_size(2**47)  # More than the address space of a process.
    try:
        code, _, err = command(
            "plan", words / "manifest.csv", "--step", SPLIT, "--output", tmp_path / "d"
        )
    finally:
        threading.stack_size(before)
    assert code == 2
    assert err.startswith("batchmill: there is not enough memory. ")


@pytest.mark.end_to_end
def test_try_as_json_prints_nothing_else(words, tmp_path):
    """The step and its processes print as well."""
    (tmp_path / "noisy.py").write_text(
        "import os\nprint('import')\n"
        "def step(source):\n"
        "    print('step')\n    os.system('echo process')\n    return {'a': 1}\n"
    )
    command = ["-m", "batchmill", "try", words / "a.txt", "--step", "noisy:step", "--json"]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert json.loads(done.stdout)["rows"] == [{"a": 1}]
    assert {"import", "step", "process"} <= set(done.stderr.split())


def test_try_as_json(command, words):
    code, out, _ = command(
        "try", words / "a.txt", "--step", SPLIT, "--param", "num_chars=3", "--param", "overlap=2",
        "--json",
    )  # fmt: skip
    assert code == 0
    assert [row["part"] for row in json.loads(out)["rows"]] == ["sim", "imp", "mpl", "ple"]


def test_try_prints_the_traceback_of_a_failure(command, words, monkeypatch):
    monkeypatch.chdir(STEP_MODULES)
    code, out, _ = command("try", words / "b.txt", "--step", "steps_under_test:fails_on_b")
    assert code == 1
    assert "b.txt: failed" in out
    assert "in fails_on_b" in out
    assert out.rstrip().endswith("and more")


def test_try_reports_a_step_that_calls_exit(command, words, tmp_path, monkeypatch):
    (tmp_path / "leaver.py").write_text("import sys\ndef step(source):\n    sys.exit(3)\n")
    monkeypatch.chdir(tmp_path)
    code, out, _ = command("try", words / "a.txt", "--step", "leaver:step")
    assert code == 1
    assert "SystemExit: 3" in out
    assert "The step called sys.exit or exit. Let it return its rows" in out


def tried(*options, cwd, **variables):
    """Run `batchmill try` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "batchmill", "try", *options],
        cwd=cwd, env=os.environ | variables, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.end_to_end
def test_try_reports_a_step_that_ends_the_process_and_the_next_try_removes_its_files(
    words, tmp_path
):
    (tmp_path / "leaver.py").write_text(
        "import os, signal\n"
        "def leave(source):\n    os._exit(0)\n"
        "def die(source):\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "def stay(source):\n    return {}\n"
    )
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    def ended(step):
        return tried(
            words / "a.txt", "--step", f"leaver:{step}", cwd=tmp_path, TMPDIR=str(temporary)
        )

    message = "a.txt: the process of the step ended before the step returned. A step must not call"
    for step, code in (("leave", 0), ("die", -signal.SIGKILL)):
        done = ended(step)
        assert (done.returncode, done.stdout) == (code, "")
        assert message in done.stderr
    assert ended("stay").stderr == ""
    assert [*temporary.iterdir()] == []


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    ("step", "limit", "message"),
    [
        ("hang", ("--timeout", "0.5"), r"still running after 0.5 s \(--timeout\)\."),
        ("fill", ("--memory-limit", "100M"), r"used \d+\.\d MiB of memory \(--memory-limit\)\."),
    ],
)
def test_try_ends_a_step_above_a_limit_with_its_processes(words, tmp_path, step, limit, message):
    (tmp_path / "large.py").write_text(
        "import pathlib, subprocess\n"
        "def start():\n"
        "    process = subprocess.Popen(['sleep', '1000'])\n"
        "    pathlib.Path('pid').write_text(str(process.pid))\n"
        "    return process\n"
        "def hang(source):\n    start().wait()\n"
        "def fill(source):\n    started = start()\n"
        "    kept = bytearray(b'x') * 400_000_000\n    started.wait()\n"
    )
    done = tried(words / "a.txt", "--step", f"large:{step}", *limit, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")
    assert re.search(f"a.txt: {message}", done.stderr)
    assert (f"in {step}" in done.stderr) == (step == "hang")  # The stack shows where it hangs.
    assert "ended before the step returned" not in done.stderr
    child = int((tmp_path / "pid").read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie"


def test_try_passes_a_row_to_the_step(command, words, monkeypatch):
    monkeypatch.chdir(STEP_MODULES)
    code, out, _ = command(
        "try", words / "a.txt", "--step", "steps_under_test:labelled", "--row", "label=ab", "--json"
    )
    assert code == 0
    assert json.loads(out)["rows"] == [{"twice": "abab"}]


def test_plan_prints_only_the_reasons_that_apply(command, words, tmp_path):
    job = ("plan", words / "manifest.csv", "--step", SPLIT, "--output", tmp_path / "out")
    _, out, _ = command(*job, "--cores", "2")
    first, second, *_ = out.splitlines()
    assert first.strip() == "4 new: a.txt, b.txt, c.txt, d.txt"
    assert second.startswith("4 inputs to execute, in 1 shard with batch_size ")
    assert "usable cores" not in out


def test_plan_explains_its_reasons(command, words, tmp_path, monkeypatch):
    monkeypatch.chdir(STEP_MODULES)
    out = tmp_path / "out"
    job = (words / "manifest.csv", "--step", "steps_under_test:fails_on_b", "-o", out)
    run_job(words / "manifest.csv", "steps_under_test:fails_on_b", out)
    (words / "manifest.csv").write_text("input\na.txt\nb.txt\nc.txt\n")
    next(out.glob("files/c-*/*")).unlink()
    _, text, _ = command("plan", *job)
    assert "1 damaged (an output file is missing or has another size): c.txt" in text
    assert (
        "1 quarantined (failed earlier, and nothing changed; to execute it: batchmill retry)"
        in text
    )
    assert "1 withdrawn (no longer in the manifest and the tables; kept in the ledger" in text
    assert "without --prune): d.txt" in text
    command("retry", out)
    _, text, _ = command("plan", *job)
    assert "1 retry (requested by batchmill retry or verify --repair): b.txt" in text
    assert "quarantined" not in text


def test_run_explains_the_reasons_that_it_counts(command, words, tmp_path, monkeypatch):
    manifest, out = words / "manifest.csv", tmp_path / "out"
    run_job(manifest, SPLIT, out)
    manifest.write_text("input\na.txt\nb.txt\n")
    _, _, err = command("run", manifest, "--step", SPLIT, "-o", out)
    assert "2 inputs (2 unchanged, 2 withdrawn); 0 to execute." in err
    assert (
        "  withdrawn: no longer in the manifest and the tables; kept in the ledger without --prune"
        in err
    )
    assert "unchanged:" not in err


def test_plan_as_json(command, words, tmp_path):
    code, out, _ = command(
        "plan", words / "manifest.csv", "--step", SPLIT, "--output", tmp_path / "out",
        "--cores", "2", "--json",
    )  # fmt: skip
    plan = json.loads(out)
    assert code == 0
    assert {name: plan[name] for name in ("new", "changed", "retry", "unchanged", "shards")} == {
        "new": 4,
        "changed": 0,
        "retry": 0,
        "unchanged": 0,
        "shards": 1,
    }
    assert (plan["batch_size"], plan["cores"]) == (1, 2)


def test_plan_counts_partitions_and_their_strata(command, words, tmp_path):
    (words / "m.csv").write_text(
        "input,kind,partition\na.txt,x,train\nb.txt,x,test\nc.txt,y,\nd.txt,y,\n"
    )
    job = ("plan", words / "m.csv", "--step", SPLIT, "--output", tmp_path / "out")
    divided = (*job, "--partition", "train=50,test=50", "--stratify", "kind", "--seed", "3")
    code, out, _ = command(*divided)
    assert code == 0
    assert "Partitions: train 2, test 2.\n" in out
    _, out, _ = command(*divided, "--json")
    assert json.loads(out)["partitions"] == {"train": 2, "test": 2}
    strata = {"x": {"train": 1, "test": 1}, "y": {"train": 1, "test": 1}}
    assert json.loads(out)["strata"] == strata
    _, out, _ = command(*job, "--json")
    assert not {"partitions", "strata"} & json.loads(out).keys()


def test_plan_warns_about_a_partition_without_inputs(command, words, tmp_path):
    (words / "m.csv").write_text("input,partition\na.txt,train\nb.txt,train\n")
    job = ("plan", words / "m.csv", "--step", SPLIT, "--output", tmp_path / "out")
    divided = (*job, "--partition", "train=0.8,test=0.2")
    _, out, _ = command(*divided)
    assert "Warning: partition 'test' has no inputs, but its share is 20 %." in out
    assert "Warning: partition 'train'" not in out
    _, out, _ = command(*divided, "--json")
    warnings = ["partition 'test' has no inputs, but its share is 20 %"]
    assert json.loads(out)["partition_warnings"] == warnings
    _, out, _ = command(*job, "--json")
    assert "partition_warnings" not in json.loads(out)


def test_plan_reports_that_groups_are_reassigned(command, words, tmp_path):
    divided = {"partition": "a=0.5,b=0.5", "stratify": "input"}
    run_job(words / "manifest.csv", SPLIT, tmp_path / "out", options=divided)
    job = ("plan", words / "manifest.csv", "--step", SPLIT, "--output", tmp_path / "out")
    again = (*job, "--partition", "a=0.5,b=0.5", "--stratify", "input")
    assert "Re-assigning" not in command(*again)[1]
    _, out, _ = command(*again, "--seed", "1")
    assert "Re-assigning all groups to partitions: --seed was 0, and is 1." in out


def test_verify_fails_for_a_leak_and_only_warns_about_duplicates(
    command, words, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (words / "b.txt").write_text("simple")
    (words / "m.csv").write_text("input,partition\na.txt,train\nb.txt,test\nc.txt,\n")
    run_job(words / "m.csv", SPLIT, "out", options={"partition": "train=0.5,test=0.5"})
    code, out, _ = command("verify", "out")
    assert code == 0
    assert "duplicate: metadata.parquet: a.txt (train) and b.txt (test) have the same" in out
    assert "out: matches its ledger." in out
    table = pd.read_parquet("out/metadata.parquet")
    table.assign(partition="train").to_parquet("out/metadata.parquet")
    code, out, _ = command("verify", "out", "--repair")
    assert code == 1
    assert "leak: metadata.parquet: b.txt is in train, but was assigned to test" in out
    assert "Run the job again to rebuild missing or changed files." in out
    assert "removed" not in out
    assert (
        json.loads(command("plan", words / "m.csv", "--step", SPLIT, "-o", "out", "--json")[1])[
            "unchanged"
        ]
        == 3
    ), "a leak in the table does not execute inputs again"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "nosuch.csv", "--step", SPLIT, "-o", "out"], "no such file or folder"),
        (["run", "manifest.csv", "--step", "nosuch:x", "-o", "out"], "no module 'nosuch'"),
        (["run", "manifest.csv", "--step", SPLIT, "-o", "out", "--param", "n=1"], "unknown param"),
        (["run", "manifest.csv", "--step", SPLIT, "-o", "out", "--param", "num_chars=x"], "int"),
        (["run", "manifest.csv", "--step", SPLIT, "-o", "out", "--param", "x"], "key=value"),
        (["run", "manifest.csv", "--step", SPLIT, "-o", "a.txt"], "is a file. Name a folder"),
        (["run", "manifest.csv", "--step", SPLIT, "-o", "."], "contains files, but is not"),
        (["run", "manifest.csv", "--step", SPLIT, "-o", "ftp://b/x"], "datasets go to"),
        (["run", "manifest.csv", "--step", SPLIT, "-o", "memory://x"], "one process only"),
        (["run", "manifest.csv", "--step", SPLIT, "-o", "s3://k:pass@b/x"], "s3://***b/x"),
        (["run", "nosuch://b/x.csv", "--step", SPLIT, "-o", "out"], "no library opens nosuch://"),
        (["run", "s3://k:pass@b/m.csv", "--step", SPLIT, "-o", "out"], "holds a credential"),
        (["run", "manifest.csv", "--step", SPLIT, "-o", "out", "--batch-size", "0"], "of 1"),
        (["run", "manifest.csv", "--step", SPLIT, "-o", "out", "--num-workers", "-1"], "of 0"),
        (["run", "manifest.csv", "--step", SPLIT, "-o", "out", "--root", "nosuch"], "no such fol"),
        (["run", "manifest.csv", "--step", SPLIT], "--output"),
        (["run", "manifest.csv", "--step", SPLIT, "-o", "out", "--partition", "a=2"], "sum to 2"),
        (["plan", "manifest.csv", "--step", SPLIT, "-o", "out", "--group-by", "x"], "--partition"),
        (
            ["plan", "manifest.csv", "--step", SPLIT, "-o=o", "--partition=a=1", "--group-by=who"],
            "no column 'who' for --group-by (found: 'input')",
        ),
        (["run", "manifest.csv", "--step", SPLIT, "-o", "out", "--bogus"], "--bogus"),
        (["run", "manifest.csv", "--step", SPLIT, "-o", "out", "--retries", "x"], "whole number"),
        (["plan", "manifest.csv", "--step", SPLIT, "-o", "out", "--cores", "0"], "1 or more"),
        (["run", "manifest.csv", "--step", SPLIT, "-o", "out", "--ray", "x"], "expected ray://"),
        (
            ["run", "manifest.csv", "--step", SPLIT, "-o", "out", "--ray", "127.0.0.1:9"],
            "nothing responds",
        ),
        (["run", "manifest.csv", "--step", SPLIT, "-o", "out", "--retries", "-1"], "less than"),
        (["run", "manifest.csv", "--step", SPLIT, "-o", "out", "--timeout", "1e10"], "1000000000"),
        (["run", "manifest.csv", "--step", SPLIT, "-o", "out", "--timeout", "-1"], "minimum of 0"),
        (
            ["run", "manifest.csv", "--step", SPLIT, "-o", "out", "--memory-limit", "x"],
            "such as 2G",
        ),
        (
            ["run", "manifest.csv", "--step", SPLIT, "-o", "out", "--max-failures", "x"],
            "a percentage",
        ),
        (["run", "manifest.csv", "--step", SPLIT, "-o", "s3:/b/x"], "Write s3://b/x."),
        (["run", "manifest.csv", "--step", SPLIT, "-o", "/proc/new"], "cannot be written to"),
        (["plan", "s3:/b/m.csv", "--step", SPLIT, "-o", "out"], "Write s3://b/m.csv."),
        (["plan", "s3:/b/*.wav", "--step", SPLIT, "-o", "out"], "Write s3://b/*.wav."),
        (["try", "https:/host/a.wav", "--step", SPLIT], "Write https://host/a.wav."),
        (["status", "gs:/b/x"], "Write gs://b/x."),
        (["status", "s3://"], "s3://: names no bucket"),
        (["plan", "s3://", "--step", SPLIT, "-o", "out"], "s3://: names no bucket"),
        (["run", ".", "--step", SPLIT, "-o", "s3://"], "s3://: names no bucket"),
        (["status", "s3:/key:secret/part@b/x"], "Write s3://***b/x."),
        (["try", ".", "--step", SPLIT], "is a folder"),
        (["status", "nosuch"], "there is no such folder"),
        (["failures", "."], "is not a dataset"),
        (["try", "nosuch.txt", "--step", SPLIT], "no such file"),
        (["watch", ".", "--every", "0"], "more than 0"),
        (["watch", "."], "set PREFECT_API_URL"),
        (
            ["run", ".", "--step", SPLIT, "-o", "out", "--min-age", "-1"],
            "is less than the minimum of 0",
        ),
        (
            ["run", ".", "--step", SPLIT, "-o", "out", "--min-age", "9", "--prune"],
            "cannot be combined",
        ),
        (["plan", ".", "--step", SPLIT, "-o", "out", "--min-age", "999"], "younger than --min-age"),
        (["run", ".", SPLIT, "out"], f"--step {SPLIT} --output DATASET"),
        (["status", "out", "12:30"], "unexpected argument '12:30'. Remove it, or"),
        (["run", "a.txt", "b.txt", "--step", SPLIT, "-o", "out"], "put quotes around globs"),
        (
            ["run", ".", "--step", SPLIT, "-o", "out", "--size", "3"],
            "A parameter of the step needs --param NAME=VALUE.",
        ),
        (["nosuch"], "nosuch"),
    ],
)
def test_a_users_mistake_is_reported_without_a_traceback_and_starts_nothing(
    command, words, monkeypatch, arguments, expected
):
    monkeypatch.chdir(words)
    before = sorted(os.listdir(words))
    code, out, err = command(*arguments)
    assert code == 2
    assert expected in err
    assert "Traceback" not in err + out
    assert out == ""
    assert sorted(os.listdir(words)) == before


def test_a_file_whose_name_begins_with_a_dash_has_a_hint(command, words, monkeypatch):
    monkeypatch.chdir(words)
    (words / "-dash.txt").write_text("word")
    code, _, err = command("try", "-dash.txt", "--step", SPLIT)
    assert (code, "To name the file: ./-dash.txt" in err) == (2, True)
    assert command("try", "./-dash.txt", "--step", SPLIT)[0] == 0


def test_markup_and_emoji_codes_in_names_are_printed_unchanged(command, words):
    _, _, err = command("try", words / "a.txt", "--step", "nosuch:boom:[red]")
    assert "nosuch:boom:[red]" in err


@pytest.mark.parametrize("name", ["run", "try", "plan", "status", "failures", "retry", "watch"])
def test_every_command_has_help_with_an_example(command, name):
    code, out, _ = command(name, "--help")
    assert code == 0
    examples = [line for line in out.splitlines() if line.strip().startswith(f"batchmill {name} ")]
    assert examples
    assert "--json" in out


def test_help_begins_with_the_options_that_most_users_need(command):
    _, out, _ = command("run", "--help")
    titles = re.findall(r"^╭─ (.+?) ─", out, re.MULTILINE)
    assert titles == [
        "Arguments", "Main options", "Failures", "This run", "Inputs", "Partitions", "Execution",
        "Confinement", "Cluster", "Saved settings", "Display",
    ]  # fmt: skip
    shown = re.findall(r"^│ (--[a-z-]+)", out, re.MULTILINE)
    assert shown[:5] == ["--step", "--output", "--param", "--ray", "--max-failures"]


@pytest.mark.end_to_end
def test_one_command_lets_the_shell_complete_options_and_files(words, tmp_path):
    def batchmill(shell):
        return subprocess.run(
            [sys.executable, "-m", "batchmill", "--install-completion", "--shell", shell],
            env=os.environ | {"HOME": str(tmp_path)}, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip

    def completions(*typed):
        script = "\n".join(
            [
                f". {tmp_path}/.bashrc",
                f"COMP_WORDS=(batchmill {shlex.join(typed)})",
                f"COMP_CWORD={len(typed)}",
                "_batchmill",
                'printf "%s\\n" "${COMPREPLY[@]}"',
            ]
        )
        command = ["bash", "--norc", "-c", script]
        return subprocess.check_output(command, cwd=words, text=True).split()

    assert "installed" in batchmill("bash")
    assert completions("ver") == ["verify", "versions"]
    assert completions("run", "--max") == ["--max-failures"]
    assert completions("run", "man") == ["manifest.csv"]
    assert completions("run", "manifest.csv", "--output", "a") == ["a.txt"]


def test_all_commands_are_documented(command):
    docs = (Path(__file__).parents[2] / "docs" / "reference" / "runs.md").read_text()
    documented = set(re.findall(r"^\| `batchmill (\w+) ", docs, re.MULTILINE))
    commands = {name for name in make_app() if not name.startswith("-")}
    assert commands == documented
    _, out, _ = command("--help")
    assert all(name in out for name in commands)


def test_init_writes_a_project_whose_test_passes_and_which_runs(command, tmp_path, monkeypatch):
    project = tmp_path / "new" / "words"
    code, out, _ = command("init", project)
    assert (code, f"cd {project}" in out) == (0, True)
    assert {path.name for path in project.iterdir()} == {
        ".gitignore", "README.md", "prefect.yaml", "test_wordcount.py", "texts", "wordcount.py",
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-m", "pytest", "-q"], cwd=project, capture_output=True)
    assert done.returncode == 0, done.stdout
    monkeypatch.chdir(project)
    assert run_job("texts", "wordcount:count", "counts").outcomes == {"ok": 3}


def test_init_replaces_no_file(command, tmp_path):
    (tmp_path / "wordcount.py").write_text("mine")
    code, _, err = command("init", tmp_path)
    assert (code, "wordcount.py: exists. Choose another folder" in err) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["wordcount.py"]
    code, _, err = command("init", tmp_path / "wordcount.py")
    assert (code, "cannot be written" in err) == (2, True)


def test_retry_releases_failed_inputs(command, words, tmp_path, monkeypatch):
    monkeypatch.chdir(STEP_MODULES)
    out = tmp_path / "out"
    run_job(words, "steps_under_test:fails_on_b", out)
    assert command("retry", out, "a.txt")[0] == 2
    assert command("retry", out, "--kind", "nosuch")[0] == 2
    code, text, _ = command("retry", out, "--kind", "crashed", "--json")
    assert (code, json.loads(text)) == (0, {"released": []})
    code, text, _ = command("retry", out, "b.txt", "--json")
    assert (code, json.loads(text)) == (0, {"released": ["b.txt"]})
    code, text, _ = command("plan", words, "--step", "steps_under_test:fails_on_b", "-o", out)
    assert ": b.txt" in text


def test_retry_releases_the_inputs_of_rows_that_meet_a_condition(command, words, tmp_path):
    out = tmp_path / "out"
    job = (words, SPLIT, out)
    run_job(*job)
    code, text, _ = command("retry", out, "--where", "input in ['a.txt', 'c.txt']")
    assert (code, text) == (0, "The next run executes 2 inputs again.\n")
    assert run_job(*job).executed == 2
    assert run_job(*job).executed == 0
    code, text, _ = command("retry", out, "--where", "input == 'z'")
    assert (code, text) == (0, "There is no such input to execute again.\n")
    for words in (["--where", "nosuch > 1"], ["a.txt", "--where", "input == 'a.txt'"]):
        assert command("retry", out, *words)[0] == 2


def test_status_says_how_to_execute_failed_inputs_again(command, words, tmp_path, monkeypatch):
    monkeypatch.chdir(STEP_MODULES)
    out = tmp_path / "out"
    run_job(words, "steps_under_test:fails_on_b", out)
    again = f"To execute the others, too: batchmill retry {out}, and then the same run.\n"
    assert again in command("status", out)[1]
    command("retry", out)
    _, text, _ = command("status", out)
    assert "The next run executes 1 input again, because a retry or a repair requested it." in text
    assert again not in text


def test_failures_as_csv(command, words, tmp_path, monkeypatch):
    monkeypatch.chdir(STEP_MODULES)
    manifest = words / "manifest.csv"
    run_job(manifest, "steps_under_test:fails_on_b", tmp_path / "out")
    (words / "a.txt").unlink()
    options = {"allow_missing": True}
    run_job(manifest, "steps_under_test:fails_on_b", tmp_path / "out", options=options)
    code, text, _ = command("failures", tmp_path / "out", "--csv")
    assert (code, "a.txt" in text, "b.txt" in text) == (0, True, True)
    assert text == (tmp_path / "out" / "failures.csv").read_text()


def test_the_texts_of_failures_are_not_laid_out_line_by_line(command, words, tmp_path, monkeypatch):
    """A console takes so long per line that 60,000 failures took a minute."""
    monkeypatch.chdir(STEP_MODULES)
    run_job(words, "steps_under_test:fails_on_b", tmp_path / "out")
    calls = []
    laid_out = PlainConsole.print
    monkeypatch.setattr(
        PlainConsole, "print", lambda *args: calls.append(args[1]) or laid_out(*args)
    )
    code, text, _ = command("failures", tmp_path / "out")
    assert code == 0
    assert calls == ["1 input is not ok. To print the complete texts, add --json or --csv."]
    lines = text.splitlines()
    assert lines[0].startswith("b.txt: failed: ValueError")
    assert lines[1:3] == ["    traceback:", "        Traceback (most recent call last):"]
    assert lines[-1] == calls[0]


def test_failures_shows_where_a_step_was_when_its_time_was_over(
    command, words, tmp_path, monkeypatch
):
    (tmp_path / "sleeper.py").write_text("import time\ndef step(source):\n    time.sleep(600)\n")
    monkeypatch.chdir(tmp_path)
    (words / "manifest.csv").write_text("input\na.txt\n")
    run_job(words / "manifest.csv", "sleeper:step", "out", policy=FailurePolicy(timeout=1))
    _, text, _ = command("failures", "out")
    assert 'sleeper.py", line 3 in step' in text


def test_run_reports_the_inputs_that_it_pruned(command, words, tmp_path):
    manifest, out = words / "manifest.csv", tmp_path / "out"
    run_job(manifest, SPLIT, out)
    manifest.write_text("input\na.txt\n")
    code, text, _ = command("run", manifest, "--step", SPLIT, "-o", out, "--prune")
    assert code == 0
    assert "3 inputs that are no longer in the manifest were removed from the dataset." in text


def test_run_and_status_print_the_time_without_the_start(command, words, tmp_path):
    run_job(words / "manifest.csv", SPLIT, tmp_path / "out")
    ledger = open_ledger(str(tmp_path / "out"))
    text = executed_text(summarise(ledger, 1), ledger)
    assert text == (f"4 executed in {ledger.read_summary(1)['seconds']:.1f} s without the start-up")
    assert command("status", tmp_path / "out")[1].startswith(f"run 1: {text}\n")
    job = ("run", words / "manifest.csv", "--step", SPLIT, "-o", tmp_path / "out")
    assert command(*job)[1].startswith("4 inputs: 4 ok (0 executed)\n")


def test_progress_names_what_its_speed_counts(words, tmp_path):
    err = io.StringIO()
    ledger = open_output(str(tmp_path / "out"))
    with showing_progress(ledger, Console(file=err, width=80)):
        run_job(words / "manifest.csv", SPLIT, tmp_path / "out")
    assert re.search(r"4/4 inputs, 0 failed, [0-9.]+ inputs/s$", err.getvalue(), re.MULTILINE)


def test_control_characters_of_names_do_not_reach_the_terminal(command):
    code, out, err = command("run", "a\x1b[31m.csv", "--step", SPLIT, "-o", "out")
    assert code == 2
    assert "a\\x1b[31m.csv" in err
    assert "\x1b" not in out + err


@pytest.mark.usefixtures("used_server")
def test_plan_and_run_name_what_changed_in_the_step(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("a")
    (tmp_path / "named_step.py").write_text(
        "from named_rules import helper\ndef step(source): return {'sum': helper(source)}\n"
    )
    job = ("in", "--step", "named_step:step", "--output", "out")
    reason = "Re-running all inputs:"

    def edit(**values):
        values = dict.fromkeys("ABCDEFG", 3) | values
        constants = "".join(f"{name} = {value}\n" for name, value in values.items())
        helper = f"def helper(source): return {' + '.join(values)}\n"
        (tmp_path / "named_rules.py").write_text(constants + helper)
        for module in ("named_step", "named_rules"):
            sys.modules.pop(module, None)

    edit()
    assert command("run", *job)[0] == 0
    edit(A=5)
    _, shown, _ = command("plan", *job)
    assert f"{reason} step > helper > A: 3 -> 5.\n" in shown
    edit(**dict.fromkeys("ABCDEFG", 5))
    _, _, shown = command("run", *job)
    assert [line for line in shown.splitlines() if line.startswith(reason)] == [
        *(f"{reason} step > helper > {name}: 3 -> 5." for name in "ABCDE"),
        f"{reason} 2 more changes.",
    ]
