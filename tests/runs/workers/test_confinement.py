"""With --confine, a step changes only its own files and opens no connection."""

import math
import os
import socket
import textwrap

import pytest
from harness.crashing import in_child
from harness.jobs import run_job

from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.options.job_options import ConfinementOptions
from batchmill.core.planning.job import make_confinement
from batchmill.errors import OptionError
from batchmill.runs.workers.landlock import check_support, is_supported

pytestmark = pytest.mark.slow

# Sends a forged answer to the worker.
ANSWERS_AND_EXITS = """
import json, stat, struct
for name in os.listdir("/proc/self/fd"):
    try:
        if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
            data = json.dumps(ANSWER).encode()
            os.write(int(name), struct.pack("!i", len(data) + 1) + data + b"0")
    except OSError:
        pass
os._exit(0)
"""
HINT = "The step is confined (--confine)."
IMPORTS = "import os, signal, socket, subprocess, sys, tempfile, time\nfrom pathlib import Path\n"
needs_landlock = pytest.mark.skipif(not is_supported(), reason="this kernel has no Landlock")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a confined step with the given lines over four inputs. Return its outcomes by input."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    for name in "abcd":
        (tmp_path / "in" / f"{name}.txt").write_text(name)

    def run_lines(lines, *, policy=None, before="", **options):
        body = "def step(source, out):\n" + textwrap.indent(textwrap.dedent(lines), "    ")
        (tmp_path / "confined_step.py").write_text(f"{IMPORTS}\n{before}\n{body}\n")
        seen = []
        options = {"confine": True, **options}
        run_job(
            *("in", "confined_step:step", "out"), seen=seen, options=options, policy=policy, cores=1
        )
        assert len(seen) == 4
        return {outcome.input: outcome for outcome in seen}

    return run_lines


def kinds(outcomes):
    return {outcome.kind for outcome in outcomes.values()}


@needs_landlock
def test_a_step_may_use_its_own_folder_and_temporary_files(run, tmp_path):
    outcomes = run("""
        with tempfile.TemporaryFile() as file:
            file.write(b"x")
        open("/dev/null", "w").write("x")
        (out / "below").mkdir()
        (out / "a.txt").write_text(source.read_text())
        os.rename(out / "a.txt", out / "below" / "a.txt")
        subprocess.run(["true"], check=True)
        print("printed")
        return {"output": "below/a.txt", "half": 0.5, "nan": float("nan")}
    """)
    assert kinds(outcomes) == {"ok"}
    files = sorted((tmp_path / "out" / "files").rglob("a.txt"))
    assert sorted(file.read_text() for file in files) == ["a", "b", "c", "d"]
    assert not (tmp_path / "out" / ".batchmill" / "staging").exists()


@needs_landlock
@pytest.mark.parametrize(
    "line",
    [
        "open(place, 'w')",
        "os.truncate(place, 0)",
        "os.remove(place)",
        "os.rename(place, out / 'x')",
        "os.link(place, out / 'x')",
        "os.symlink('/', str(place) + '.link')",
        "os.mkdir(str(place) + '.folder')",
        "subprocess.run(['sh', '-c', f'echo x > {place}'], check=True)",
        "source.write_text('x')",
        "Path('out/metadata.csv').write_text('x')",
        "next(Path('out/.batchmill').rglob('*.arrow')).unlink()",
        "(out / '..' / '..' / 'x').write_text('x')",
        "os.kill(os.getppid(), signal.SIGTERM)",
        "Path('/proc/self/oom_score_adj').write_text('0')",
    ],
)
def test_everything_else_is_refused(run, tmp_path, line):
    place = tmp_path / "outside.txt"
    place.write_text("keep")
    outcomes = run(f"place = Path({str(place)!r})\n{line}")
    assert kinds(outcomes) == {"failed"}
    assert place.read_text() == "keep"
    assert sorted(tmp_path.glob("outside*")) == [place]
    assert (tmp_path / "in" / "a.txt").read_text() == "a"


@needs_landlock
def test_a_refusal_names_the_path_and_the_option(run, tmp_path):
    place = str(tmp_path / "outside.txt")
    outcome = run(f"open({place!r}, 'w')")["a.txt"]
    assert outcome.error == "PermissionError"
    assert place in outcome.message
    assert HINT in outcome.message
    assert "confined_step.py" in outcome.traceback


@needs_landlock
def test_a_folder_can_be_allowed(run, tmp_path):
    (tmp_path / "cache").mkdir()
    place = str(tmp_path / "cache" / "x")
    outcomes = run(f"open({place!r}, 'w').write('x')", allow_write=str(tmp_path / "cache"))
    assert kinds(outcomes) == {"ok"}


@needs_landlock
@pytest.mark.parametrize(("allowed", "kind"), [(False, "failed"), (True, "ok")])
def test_connections_can_be_allowed(run, allowed, kind):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        lines = f"socket.create_connection(('127.0.0.1', {port})).close()"
        assert kinds(run(lines, allow_network=allowed)) == {kind}


@needs_landlock
def test_a_step_keeps_its_cache(run):
    outcomes = run("cache.append(os.getpid())\nreturn {'n': len(cache)}", before="cache = []")
    assert kinds(outcomes) == {"ok"}
    numbers = sorted(outcome.rows for outcome in outcomes.values())
    assert numbers[-1] != '[{"n":1}]'


@needs_landlock
@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("os._exit(3)", "crashed"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "crashed"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "crashed"),
        ("time.sleep(60)", "timeout"),
        ("raise ValueError('no')", "failed"),
        ("kept = b'1' * 200 * 2**20; time.sleep(60)", "oom"),
    ],
)
def test_each_kind_of_outcome_costs_one_input(run, line, kind):
    timeout = 2 if kind == "timeout" else 60
    policy = FailurePolicy(retries=0, timeout=timeout, memory_limit="100M")
    outcomes = run(f"if source.name == 'b.txt':\n    print('here')\n    {line}", policy=policy)
    assert {name: outcome.kind for name, outcome in outcomes.items()} == {
        "a.txt": "ok",
        "b.txt": kind,
        "c.txt": "ok",
        "d.txt": "ok",
    }
    assert "here" in outcomes["b.txt"].log
    if kind == "timeout":
        assert "confined_step.py" in outcomes["b.txt"].log


@needs_landlock
@pytest.mark.parametrize(
    ("line", "attempts", "pause"),
    [("raise batchmill.RetryAfter(1.5)", 2, 1.5), ("unknown", 1, math.inf)],
)
def test_an_error_has_the_same_pause_and_retries_as_without_the_option(run, line, attempts, pause):
    lines = f"if source.name == 'b.txt':\n    {line}"
    failed = run(lines, before="import batchmill", policy=FailurePolicy(retries=1))["b.txt"]
    assert (failed.kind, failed.attempts, failed.retry_after) == ("failed", attempts, pause)


@needs_landlock
def test_a_crash_is_seen_while_a_forked_process_lives(run):
    outcomes = run(
        """
        if source.name == "b.txt":
            if os.fork() == 0:
                time.sleep(600)
            os.kill(os.getpid(), signal.SIGKILL)
    """,
        policy=FailurePolicy(retries=0, timeout=300),
    )
    assert outcomes["b.txt"].kind == "crashed"
    assert [outcome.kind for outcome in outcomes.values()].count("ok") == 3


@needs_landlock
def test_a_process_that_dies_between_two_inputs_costs_no_input(run):
    outcomes = run(ANSWERS_AND_EXITS, before="ANSWER = {'rows': '[]'}")
    assert kinds(outcomes) == {"ok"}


@needs_landlock
def test_the_answer_of_the_process_is_checked(run):
    texts = dict.fromkeys(("error", "message", "traceback", "retry_after"), "x")
    forged = {"failure": {"kind": "cancelled", **texts}}
    outcomes = run(ANSWERS_AND_EXITS, before=f"ANSWER = {forged}", policy=FailurePolicy(retries=0))
    assert kinds(outcomes) == {"failed"}
    outcomes = run(ANSWERS_AND_EXITS, before="ANSWER = {'rows': '[{\"input\": \"x\"}]'}")
    assert kinds(outcomes) == {"failed"}


@needs_landlock
def test_what_a_step_changes_is_restored(run, tmp_path):
    outcomes = run(
        """
        seen = [os.getcwd(), os.environ.get("LEFT"), sys.stdout.fileno()]
        os.chdir("/")
        os.environ["LEFT"] = "x"
        sys.stdout = sys.stderr
        subprocess.Popen(["sleep", "60"])
        assert seen == [CWD, None, 1], seen
    """,
        before=f"CWD = {os.path.realpath(tmp_path)!r}",
    )
    assert kinds(outcomes) == {"ok"}


@needs_landlock
def test_a_step_that_closes_its_streams_costs_no_other_input(run):
    outcomes = run("if source.name == 'b.txt':\n    [os.close(n) for n in (0, 1, 2)]")
    assert {outcomes[name].kind for name in ("a.txt", "c.txt", "d.txt")} == {"ok"}


def test_without_landlock_the_option_is_an_error(monkeypatch):
    monkeypatch.setattr("batchmill.runs.workers.landlock._version", lambda: 3)
    with pytest.raises(OptionError, match=r"needs Linux 6\.7"):
        check_support([])


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(OptionError, match="no such file or folder"):
        check_support([str(tmp_path / "none")])


def test_the_other_options_need_confine():
    with pytest.raises(OptionError, match="--allow-write needs --confine"):
        make_confinement(ConfinementOptions(allow_write="/tmp"))


def test_an_administrator_confines_all_steps(monkeypatch):
    monkeypatch.setenv("BATCHMILL_CONFINE", "1")
    assert make_confinement(ConfinementOptions()) is not None
    with pytest.raises(OptionError, match="BATCHMILL_CONFINE"):
        make_confinement(ConfinementOptions(confine=True, allow_network=True))


def test_a_batch_step_is_rejected(words, tmp_path):
    with pytest.raises(OptionError, match="is a batch step"):
        run_job(
            words / "manifest.csv",
            "batch_steps:Lengths",
            tmp_path / "out",
            options={"confine": True},
        )


@needs_landlock
def test_a_folder_that_vanishes_during_the_run_is_named(run, tmp_path):
    """The process of the step cannot start. It must not be started again and again."""
    folder = tmp_path / "cache"
    folder.mkdir()
    before = f"""
        import shutil
        os.register_at_fork(after_in_child=lambda: shutil.rmtree({str(folder)!r}, True))
    """

    def check():
        policy = FailurePolicy(retries=0, timeout=10)
        outcomes = run(
            "return {}", policy=policy, before=textwrap.dedent(before), allow_write=str(folder)
        )
        assert kinds(outcomes) == {"crashed"}
        missing = f"No such file or directory: '{folder}'"
        assert all(missing in outcome.log for outcome in outcomes.values())

    assert in_child(check) == 0
