"""examples/summaries by its README, and a rate that applies to all shards together."""

import re
import shutil

import pandas as pd
import pytest
from harness.chat_server import chat_server
from harness.live import ROOT

README = (ROOT / "examples" / "summaries" / "README.md").read_text()


@pytest.fixture
def example(work):
    """A copy of the example."""
    return shutil.copytree(ROOT / "examples" / "summaries", work / "examples" / "summaries")


@pytest.mark.usefixtures("example")
def test_the_commands_of_the_readme_make_its_table(shell, work):
    _, commands = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    with chat_server() as server:
        commands = commands.replace("http://127.0.0.1:8000/v1", server.url)
        done = shell.run("bash", "-c", f"set -eu\n{commands}")
        counts = server.counts()
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.strip("| ").split(" | ") for line in README.splitlines() if ".txt |" in line]
    table = pd.read_csv(work / "summaries" / "metadata.csv").astype(str)
    assert table[["input", "summary", "tokens"]].to_numpy().tolist() == rows
    assert counts.requests.total() == 5  # `try` and `run` both execute the ferry.


def test_the_rate_limits_all_shards_together(shell, example):
    (example / "in").mkdir()
    for number in range(60):
        (example / "in" / f"{number}.txt").write_text(f"Document {number}")
    shell.folder = example
    with chat_server() as server:
        shell.environment["OPENAI_BASE_URL"] = server.url
        code, summary = shell.json(
            *["run", "in", "--step", "summarise:Summarise", "--param", "model=small", "-o", "out"],
            *["--num-workers", "1", "--rate", "20/s", "--concurrency", "8"],
        )
        counts = server.counts()
    assert (code, summary["outcomes"], len(counts.arrivals)) == (0, {"ok": 60}, 60)
    # The last one begins at least 59/20 s after the first one, which may arrive late.
    assert max(counts.arrivals) - min(counts.arrivals) >= 59 / 20 - 1
