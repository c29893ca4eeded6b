"""Every kind of poison among healthy inputs: one outcome each, the right one, and nothing left."""

import os
from collections import Counter
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jobs import run_job
from poison import POISONS

from batchmill.policy import FailurePolicy

SUPPORT = Path(__file__).parents[1] / "support"
TIMEOUT = 4.0
MEMORY_BYTES = 700 * 2**20
POLICY = FailurePolicy(retries=1, timeout_seconds=TIMEOUT, memory_bytes=MEMORY_BYTES)
# Executed again alone, or again with others, before they count; a timeout is not.
EXECUTIONS = {"ok": 1, "timeout": 1, "failed": 2, "crashed": 2, "oom": 2}


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch):
    """No process, file descriptor or shared memory is left by what a test runs."""
    monkeypatch.chdir(SUPPORT)
    me = psutil.Process()
    before = (set(me.children(recursive=True)), me.num_fds(), set(os.listdir("/dev/shm")))
    yield
    left = {child for child in me.children(recursive=True) if child not in before[0]}
    assert not [child for child in left if child.status() != psutil.STATUS_ZOMBIE]
    assert me.num_fds() <= before[1]
    assert set(os.listdir("/dev/shm")) <= before[2]


def make_inputs(folder, poisons, total=64):
    """Write inputs, poisons evenly among healthy ones."""
    folder.mkdir()
    names = [f"{name}-{number}" for number, name in enumerate(poisons)]
    names += [f"healthy-{number}" for number in range(total - len(names))]
    for name in names:
        (folder / name).write_text("x")
    return names


def run_poisons(tmp_path, poisons, num_workers, step="poison:step", total=64, policy=POLICY):
    """Run; return the outcomes by input and how often each was executed."""
    names = make_inputs(tmp_path / "in", poisons, total)
    seen = []
    run_job(
        tmp_path / "in",
        step,
        tmp_path / "out",
        batch_size=8,
        num_workers=num_workers,
        cores=max(1, num_workers),
        seen=seen,
        policy=policy,
        log=str(tmp_path / "log"),
    )
    outcomes = {outcome.input: outcome for outcome in seen}
    assert len(seen) == total
    assert set(outcomes) == set(names)
    return outcomes, Counter((tmp_path / "log").read_text().split())


def check(outcomes, executions):
    for name, outcome in outcomes.items():
        poison = name.split("-")[0]
        _, kind, error = POISONS.get(poison, (None, "ok", ""))
        assert (outcome.kind, outcome.error) == (kind, error), outcome
        assert executions[name] == EXECUTIONS[kind], name
        assert outcome.attempts == executions[name]
        if poison == "healthy":
            assert outcome.rows == f'[{{"surroundings":["{SUPPORT}",null,true]}}]'


@pytest.mark.parametrize("step", ["poison:step", "poison:Items"])
@pytest.mark.parametrize("num_workers", [0, 1, 4])
def test_every_poison_at_once(tmp_path, num_workers, step):
    poisons = [name for name in POISONS if name != "huge"]
    check(*run_poisons(tmp_path, poisons, num_workers, step))


@settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    poisons=st.lists(
        st.sampled_from([name for name in POISONS if name not in ("allocate", "huge", "exit0")]),
        min_size=1,
        max_size=20,
    ),
    num_workers=st.sampled_from([0, 1, 4]),
)
def test_random_mixes(tmp_path_factory, poisons, num_workers):
    check(*run_poisons(tmp_path_factory.mktemp("mix"), poisons, num_workers, total=40))


def test_metadata_without_bound_is_refused(tmp_path):
    check(*run_poisons(tmp_path, ["huge"], 2, total=8, policy=FailurePolicy(retries=1)))


def test_a_timeout_says_where_it_stood(tmp_path):
    outcomes, _ = run_poisons(tmp_path, ["sleep"], 1, total=4)
    outcome = outcomes["sleep-0"]
    assert "still at work after 4 s" in outcome.message
    assert "poison.py" in outcome.log
    assert outcome.seconds < TIMEOUT + 2


def test_a_crash_says_where_it_stood(tmp_path):
    outcomes, _ = run_poisons(tmp_path, ["segfault"], 1, total=4)
    outcome = outcomes["segfault-0"]
    assert outcome.message == "its process died of SIGSEGV"
    assert "Fatal Python error: Segmentation fault" in outcome.log
    assert "poison.py" in outcome.log


def test_the_log_is_a_bounded_tail_of_this_input_alone(tmp_path):
    outcomes, _ = run_poisons(tmp_path, ["noise", "valueerror"], 1, total=4)
    assert outcomes["noise-0"].log.endswith("the last line\n")
    assert len(outcomes["noise-0"].log) <= 16 * 1024
    assert outcomes["valueerror-1"].log == ""


@pytest.mark.parametrize(
    ("fails", "retries", "kind", "attempts"),
    [(2, 2, "ok", 3), (2, 1, "failed", 2), (1, 0, "failed", 1), (0, 2, "ok", 1)],
)
def test_an_input_is_executed_at_most_once_more_than_its_retries(
    tmp_path, fails, retries, kind, attempts
):
    (tmp_path / "in").mkdir()
    for name in ("flaky", "a", "b", "c"):
        (tmp_path / "in" / name).write_text("x")
    seen = []
    run_job(
        tmp_path / "in",
        "poison:flaky",
        tmp_path / "out",
        seen=seen,
        policy=FailurePolicy(retries=retries),
        log=str(tmp_path / "log"),
        fails=fails,
    )
    outcome = next(outcome for outcome in seen if outcome.input == "flaky")
    assert (outcome.kind, outcome.attempts) == (kind, attempts)
    executions = Counter((tmp_path / "log").read_text().split())
    assert executions == {"flaky": attempts, "a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize("poison", ["segfault", "kill", "allocate"])
def test_without_retries_a_crash_is_final_at_once(tmp_path, poison):
    policy = FailurePolicy(retries=0, timeout_seconds=TIMEOUT, memory_bytes=MEMORY_BYTES)
    outcomes, executions = run_poisons(tmp_path, [poison], 2, total=8, policy=policy)
    assert outcomes[f"{poison}-0"].kind == POISONS[poison][1]
    assert executions[f"{poison}-0"] == 1


def test_a_crashed_input_leaves_no_files(tmp_path):
    (tmp_path / "crashing.py").write_text(
        "import os\n"
        "def step(source, out):\n"
        "    (out / 'half').write_text('x')\n"
        "    if source.name == 'a': os._exit(3)\n"
        "    return {'output': 'half'}\n"
    )
    os.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    for name in "abc":
        (tmp_path / "in" / name).write_text("x")
    summary = run_job(tmp_path / "in", "crashing:step", tmp_path / "out")
    assert summary.outcomes == {"ok": 2, "crashed": 1}
    assert len(list((tmp_path / "out" / "files").iterdir())) == 2
    assert sorted(os.listdir(tmp_path / "out" / ".batchmill")) == ["format.json", "parts", "runs"]


@pytest.mark.parametrize("trouble", ["unreadable", "folder", "empty", "vanishes"])
def test_inputs_that_are_no_good_file(tmp_path, trouble):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in "abcd":
        (folder / name).write_text("x")
    module = f"reading_{trouble}"  # One of its own: a module is imported once in a process.
    (tmp_path / f"{module}.py").write_text(
        "import os\n"
        "def step(source):\n"
        "    if source.name == 'a' and os.path.exists(source.parent / 'b'):\n"
        f"        if {trouble!r} == 'vanishes': os.unlink(source.parent / 'd')\n"
        "    return {'first': source.read_text()[0]}\n"
    )
    os.chdir(tmp_path)
    bad = folder / "d"
    if trouble == "unreadable":
        bad.unlink()
        bad.symlink_to(bad)
    elif trouble == "empty":
        bad.write_text("")
    (tmp_path / "m.csv").write_text("input\n" + "".join(f"in/{name}\n" for name in "abcd"))
    if trouble == "folder":
        bad.unlink()
    seen = []
    run_job(tmp_path / "m.csv", f"{module}:step", tmp_path / "out", batch_size=1, num_workers=1,
            cores=1, seen=seen)  # fmt: skip
    kinds = {outcome.input: outcome.kind for outcome in seen}
    assert kinds.pop("in/d") == ("failed" if trouble == "empty" else "missing")
    assert set(kinds.values()) == {"ok"}
