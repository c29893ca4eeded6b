"""A flow run that Prefect runs a second time continues like a new run over the dataset."""

STEP = """
def step(source, out):
    word = source.read_text()
    if word == "pytorch": raise ValueError("no " + word)
    return {"letters": len(word)}
"""
RETRIED = """
from batchmill.flows.preprocess import preprocess
flow = preprocess.with_options(retries=1)
state = flow("words/manifest.csv", "picky:step", "out", return_state=True)
print(state.state_details.flow_run_id)
"""


def test_a_retried_flow_run_is_never_marked_as_crashed(shell, words, work, api):
    (work / "picky.py").write_text(STEP)
    words.rename(work / "words")
    done = shell.python(RETRIED)
    assert done.returncode == 0, done.stderr
    flow_run = done.stdout.split()[-1]
    states = [state["name"] for state in api(f"/flow_run_states/?flow_run_id={flow_run}")]
    assert states == ["Pending", "Running", "AwaitingRetry", "Running", "Failed"]
    code, status = shell.json("status", "out")
    assert (code, status["run"], status["plan"]["quarantined"]) == (0, 2, 1)


def test_prefects_default_number_of_retries_does_not_apply(shell, words, work):
    (work / "picky.py").write_text(STEP)
    shell.environment["PREFECT_FLOWS_DEFAULT_RETRIES"] = "2"
    done = shell.batchmill("run", words / "manifest.csv", "--step", "picky:step", "-o", "out")
    assert done.returncode == 1
    assert "4 inputs: 3 ok, 1 failed (4 executed" in done.stdout
    assert "d.txt: failed: ValueError: no pytorch" in done.stderr
