"""Functions of notebook cells are steps, in a real kernel."""

import signal
from contextlib import ExitStack, contextmanager

import pytest
from harness.kernel import kernel_in
from harness.live import clean_environment, shell_in, wait_for

CELLS = (
    "import batchmill\nFACTOR = 2",
    "def helper(text):\n    return len(text) * FACTOR",
    "def count(source):\n    return {'length': helper(source.read_text())}",
    "result = batchmill.run('words', count, 'counted')\nprint(result.executed, result.counts)",
    "print(batchmill.metadata('counted')['length'].tolist())",
)
MISTAKE = "batchmill.run('nosuch', count, 'counted')"


@pytest.fixture(scope="module")
def kernels(prefect_server, tmp_path_factory):
    """Two kernels, in which all tests of a user with a Prefect server execute their cells."""
    with ExitStack() as stack:
        yield [stack.enter_context(new_kernel(prefect_server, tmp_path_factory)) for _ in range(2)]


@contextmanager
def new_kernel(server, folders):
    folder = folders.mktemp("kernel")
    environment = clean_environment(folder / "home") | {"PREFECT_API_URL": server}
    with shell_in(folder, environment) as shell, kernel_in(shell, folder) as kernel:
        # No process exists before the first run.
        started = "import batchmill, psutil\nprint(psutil.Process().children())"
        assert kernel.execute(started) == ["[]\n"]
        yield kernel


@pytest.fixture
def two_kernels(kernels, work, words):
    """Return both kernels, without names of other tests, in a folder with four words."""
    words.rename(work / "words")
    (work / "words" / "manifest.csv").unlink()
    for kernel in kernels:
        assert kernel.execute(f"%reset -f\n%cd -q {work}") == []
    return kernels


@pytest.fixture
def kernel(two_kernels):
    """Return one of the kernels."""
    return two_kernels[0]


def outputs_of(kernel, *cells):
    """Execute cells, and return the outputs of each."""
    return [kernel.shown(kernel.start(text)) for text in cells]


def printed(outputs):
    """Return the texts that cells printed, without progress lines."""
    texts = [[output.text for output in of_cell if not is_line(output)] for of_cell in outputs]
    assert not any("Warning" in text for of_cell in texts for text in of_cell)
    return texts


def is_line(output):
    """Return whether an output is a progress line."""
    return output.kind == "display_data"


@pytest.mark.journey
def test_a_cells_function_is_a_step_and_the_same_cells_execute_nothing_again(two_kernels):
    one, other = two_kernels
    shown = printed(outputs_of(one, *CELLS))
    assert shown == [[], [], [], ["4 {'ok': 4}\n"], ["[12, 18, 26, 14]\n"]]
    # In another kernel, with a remark, another layout and another order of the cells.
    again = [CELLS[0], CELLS[2], f"# A remark.\n{CELLS[1]}", CELLS[3]]
    assert printed(outputs_of(other, *again))[3] == ["0 {'ok': 4}\n"]
    changed = [CELLS[0].replace("2", "3"), *CELLS[1:]]
    assert printed(outputs_of(other, *changed))[3:] == [["4 {'ok': 4}\n"], ["[18, 27, 39, 21]\n"]]


WAITS = (
    "import asyncio\n"
    "async def count(source):\n"
    "    await asyncio.sleep(0.01)\n"
    "    return {'length': helper(source.read_text())}"
)


# tests/runs/test_steps_by_value.py shows that the same function is not executed again.
def test_an_async_function_of_a_cell_is_a_step(kernel):
    cells = [*CELLS[:2], WAITS, *CELLS[3:]]
    expected = [["4 {'ok': 4}\n"], ["[12, 18, 26, 14]\n"]]
    assert printed(outputs_of(kernel, *cells))[3:] == expected


ARRAYS = (
    "import pathlib, numpy, torch, batchmill\n"
    "pathlib.Path('arrays').mkdir(exist_ok=True)\n"
    "for n in range(3): numpy.save(f'arrays/{n}.npy', numpy.full(4, n, 'float32'))"
)
NET = (
    "class Net(torch.nn.Module):\n"
    "    def __init__(self):\n"
    "        super().__init__()\n"
    "        self.scale = torch.nn.Parameter(torch.tensor(2.0))\n"
    "    def forward(self, x):\n"
    "        return (x * self.scale).sum(1)"
)
PREDICT = (
    "done = batchmill.infer('arrays', {}, 'predictions')\n"
    "print(done.executed, sorted(done.metadata['prediction']))"
)


def test_a_cells_model_predicts_and_only_other_weights_execute_again(two_kernels):
    one, another = two_kernels
    cells = [ARRAYS, NET, "net = Net()", PREDICT.format("net")]
    assert printed(outputs_of(one, *cells))[3] == ["3 [0.0, 8.0, 16.0]\n"]
    changed = "net.scale.data += 1\n" + PREDICT.format("net")
    *_, again, other = printed(outputs_of(another, *cells, changed))
    assert again == ["0 [0.0, 8.0, 16.0]\n"]
    assert other == ["3 [0.0, 12.0, 24.0]\n"]


def test_a_mistake_is_one_readable_line(kernel):
    ((shown,),) = printed(outputs_of(kernel, *CELLS[:3], MISTAKE))[3:]
    assert shown.startswith("ManifestError: ")
    assert "no such file or folder" in shown
    assert len(shown.splitlines()) == 1


FAILING = "def reject(source):\n    raise ValueError('no length')"
REJECTED = (
    "try: batchmill.run('words', reject, 'rejected')\n"
    "except batchmill.RunError as error: print(error)"
)


def test_a_failed_run_says_what_to_do_as_in_a_script(kernel):
    (shown,) = printed(outputs_of(kernel, CELLS[0], FAILING, REJECTED))[2]
    assert "After a passing fault: batchmill retry " in shown


@pytest.mark.parametrize("cluster", [None, pytest.param("local", marks=pytest.mark.long)])
def test_a_run_shows_one_line_and_no_log(kernel, cluster):
    run = f"result = batchmill.run('words', count, 'counted', cluster={cluster!r})"
    (_, _, _, outputs) = outputs_of(kernel, *CELLS[:3], run)
    (line,) = outputs
    assert is_line(line)
    assert line.text.startswith("4/4 inputs, 0 failed, ")


# `parents` are the processes of the shards, and `ready` are those that exist between two runs.
PROCESSES = """
import os, psutil, batchmill

def step(source, attempt):
    return {"parent": os.getppid()}

def parents(attempt):
    result = batchmill.run("words", step, "out", params={"attempt": attempt})
    return set(result.metadata["parent"])

def ready():
    children = psutil.Process().children()
    return {child.pid for child in children if "batchmill.runs.shards.process" in child.cmdline()}
"""


def test_the_next_run_in_a_kernel_finds_a_process_that_has_started(kernel):
    cells = [
        PROCESSES,
        "parents(1)\nfirst = ready()",
        "assert len(first) == 1\nassert parents(2) == first",
        # A process that has inherited other variables is replaced.
        "second = ready()\nassert second and second != first\nos.environ['SIZE'] = 'large'",
        "assert parents(3).isdisjoint(second)\nassert ready().isdisjoint(second)",
        "del os.environ['SIZE']",
    ]
    assert printed(outputs_of(kernel, *cells)) == [[]] * len(cells)


@pytest.mark.long
def test_a_verbose_run_shows_the_log_of_prefect(kernel):
    verbose = "batchmill.run('words', count, 'counted', verbose=True)"
    shown = outputs_of(kernel, *CELLS[:3], verbose)[3]
    assert any("Beginning flow run" in output.text for output in shown)


# The last input waits until the file `go` exists.
WAITING = """
import os, time
import batchmill

def step(source):
    while source.name == "d.txt" and not os.path.exists("go"):
        open("waits", "w").close()
        time.sleep(0.05)
    return {"length": len(source.read_text())}
"""
RUN = "batchmill.run('words', step, 'out', num_workers=1)"


def stopped_runs(work):
    return len([*work.glob("out/.batchmill/runs/*/stop")])


def test_an_interrupt_cancels_a_run_and_the_kernel_continues(kernel, work):
    assert kernel.execute(WAITING) == []
    # At the second interrupt, a command would end its process. A kernel has other work.
    for interrupts in (1, 2):
        cell = kernel.start(RUN)
        wait_for((work / "waits").exists, "the last input", 120)
        kernel.interrupt()
        if interrupts == 2:
            # A signal that arrives together with another one would have no effect.
            wait_for(lambda: stopped_runs(work) == 2, "the effect of the first interrupt")
            kernel.interrupt()
        assert kernel.outputs(cell)[-1].startswith("CancelledError: Cancelled by ")
        (work / "waits").unlink()
    (work / "go").touch()
    assert kernel.execute(RUN)[-1].startswith("4 inputs: 4 ok, 1 executed\n")


# Appends to `started` for each process of a Prefect server that the kernel starts.
COUNTING = """
import sys
started = []
def count_servers(event, arguments):
    if event == "subprocess.Popen" and "server_process" in str(arguments[1]):
        started.append(1)
sys.addaudithook(count_servers)
"""


# In test_embedded_server.py, a temporary server ends with a killed command in the same way.
@pytest.mark.parametrize("is_killed", [False, pytest.param(True, marks=pytest.mark.long)])
def test_one_server_serves_all_runs_of_a_kernel_and_ends_with_it(
    is_killed, bare_shell, work, words, tmp_path
):
    words.rename(work / "words")
    (work / "words" / "manifest.csv").unlink()
    (work / "go").touch()
    with kernel_in(bare_shell, tmp_path) as kernel:
        kernel.execute(WAITING)
        kernel.execute(COUNTING)
        for output in ("one", "two"):
            assert kernel.execute(RUN.replace("out", output))[-1].startswith("4 inputs: 4 ok")
        assert kernel.execute("print(len(started))") == ["1\n"]
        if is_killed:
            kernel.manager.signal_kernel(signal.SIGKILL)
            leftovers = bare_shell.leftovers
            wait_for(lambda: not leftovers(), lambda: f"the end of {leftovers()}")
