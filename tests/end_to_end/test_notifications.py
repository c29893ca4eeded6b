"""docs/notifications.md: a receiver of messages, and a server that sends them."""

import json
import os
import re
import shutil
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from live import ROOT, prefect_server_in, wait_for

PAGE = (ROOT / "docs" / "notifications.md").read_text()


class Receiver(ThreadingHTTPServer):
    """Takes messages at /hook; `messages` has them as they came."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Hook)
        self.messages = []
        self.url = f"http://127.0.0.1:{self.server_port}/hook"


class Hook(BaseHTTPRequestHandler):
    def do_POST(self):
        text = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.messages.append((self.path, json.loads(text)))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


@contextmanager
def serving(server):
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def receiver():
    with serving(Receiver()) as server:
        yield server


@pytest.fixture
def prefect_server(tmp_path):
    """A server of the test's own: others' runs are not to be told of here."""
    with prefect_server_in(tmp_path / "server-home") as url:
        yield url


def test_one_message_a_run_to_a_real_receiver(shell, api, receiver, work):
    shutil.copytree(ROOT / "examples", work / "examples")
    set_up, run = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    set_up = re.sub(r"https://chat\S+", receiver.url, set_up)
    (documented,) = map(json.loads, re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL))
    for _ in range(2):  # Given again, it makes nothing twice.
        done = shell.run("bash", "-euc", set_up)
        assert done.returncode == 0, done.stderr
    names = sorted(made["name"] for made in api("/automations/filter", {}))
    assert names == ["batchmill: a run failed", "batchmill: inputs are not ok"]

    def told(count):
        """The texts that came, once there are so many."""
        wait_for(lambda: len(receiver.messages) >= count, f"message {count}", 60)
        assert {path for path, _ in receiver.messages} == {"/hook"}
        return [message["text"] for _, message in receiver.messages]

    # Completed, with an input that is not ok: the page's message, and nothing besides.
    done = shell.run("bash", "-euc", run)
    assert done.returncode == 0, done.stderr
    expected = documented["text"].replace("/data/parts", str(work / "parts"))
    assert told(1) == [expected]
    assert receiver.messages[0][1].keys() == documented.keys()

    # Failed: told by the other automation, and by that one only.
    (command,) = (line for line in run.splitlines() if line.startswith("batchmill run"))
    strict, allow = command.replace(" --max-failures 1", ""), command.split(" --output")[0]
    done = shell.run("bash", "-euc", strict)
    assert done.returncode == 1, done.stderr
    first, *rest = told(2)[1].splitlines()
    assert first == "parts: split: Failed"
    assert rest[0] == "4 inputs: 3 ok, 1 failed"
    assert "were not executed again" in rest[-1]

    # All ok: nothing is told. Many that are not: one message.
    (work / "examples" / "words" / "b.txt").write_text("scaleable")
    assert shell.run("bash", "-euc", command).returncode == 0
    for name in ("a", "b", "c", "d"):
        (work / "examples" / "words" / f"{name}.txt").write_bytes(os.urandom(4) + b"\xff")
    done = shell.run("bash", "-euc", f"{allow} --output all --max-failures 4")
    assert done.returncode == 0, done.stderr
    assert told(3)[2].startswith("all: split: Completed, with inputs that are not ok\n4 inputs: 4 ")

    # Each is one that Prefect has sent itself; what would come later would be noted here before.
    counts = {"filter": {"event": {"name": ["prefect.automation.action.executed"]}}}
    wait_for(lambda: len(api("/events/filter", counts)["events"]) >= 3, "its record")
    triggered = {"filter": {"event": {"name": ["prefect.automation.action.triggered"]}}}
    assert len(api("/events/filter", triggered)["events"]) == 3
    assert len(receiver.messages) == 3
