"""A run inside a user's own Prefect flow."""

import json

import pytest

# Prints the result, and the number of servers that batchmill has started.
SCRIPT = """
import json, sys
import batchmill
from prefect import flow, task

started = []

def count_servers(event, arguments):
    if event == "subprocess.Popen" and "server_process" in str(arguments[1]):
        started.append(1)

sys.addaudithook(count_servers)

def run():
    result = batchmill.run("words", "batchmill.steps.words:split", "out", params={"num_chars": 3})
    return result.counts, len(result.metadata)

@flow
def in_flow():
    return run()

@flow
def in_task():
    return task(run).submit().result()

print(json.dumps([*%s(), len(started)]))
"""


@pytest.mark.parametrize("where", ["in_flow", pytest.param("in_task", marks=pytest.mark.long)])
def test_a_run_uses_the_server_of_the_flow_around_it(where, bare_shell, words, work):
    words.rename(work / "words")
    (work / "words" / "manifest.csv").unlink()
    done = bare_shell.python(SCRIPT % where)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [{"ok": 4}, 15, 0]
