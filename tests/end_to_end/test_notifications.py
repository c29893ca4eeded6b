"""The commands of docs/how-to/notifications.md, with a real receiver of messages."""

import json
import re
import shutil
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from harness.live import ROOT, prefect_server_in, serving, wait_for

PAGE = (ROOT / "docs" / "how-to" / "notifications.md").read_text()


class Receiver(ThreadingHTTPServer):
    """Rejects the first message at /hook, and collects all later messages in `messages`."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Hook)
        self.messages = []
        self.refused = 0
        self.url = f"http://127.0.0.1:{self.server_port}/hook"


class Hook(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self):
        text = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.refused:
            self.server.messages.append((self.path, json.loads(text)))
        self.send_response(204 if self.server.refused else 503)
        self.server.refused += not self.server.refused
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def receiver():
    with serving(Receiver()) as server:
        yield server


@pytest.fixture
def prefect_server(tmp_path):
    """A server only for this test, because runs of other tests would send messages."""
    with prefect_server_in(tmp_path / "server-home") as url:
        yield url


def assert_refused(done, expected):
    """Check that the script failed with one line of text, before it did anything."""
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["set_up.py", "custom-webhook/colleagues"], "set PREFECT_API_URL"),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in [
                (["set_up.py"], "give one saved notification block"),
                (["webhook.py", "https://chat.example.com/hooks/0123"], "set PREFECT_API_URL"),
                (["webhook.py", "chat"], "give one address"),
                (["webhook.py"], "give one address"),
            ]
        ),
    ],
)
def test_a_wrong_receiver_is_rejected(bare_shell, arguments, expected):
    script, *rest = arguments
    folder = ROOT / "examples" / "notifications"
    assert_refused(bare_shell.run("python", folder / script, *rest), expected)


@pytest.mark.long
def test_a_run_sends_one_message_to_a_real_receiver(shell, api, receiver, work):
    shutil.copytree(ROOT / "examples", work / "examples")
    set_up, run = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    set_up = re.sub(r"https://chat\S+", receiver.url, set_up)
    (documented,) = map(json.loads, re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL))
    script, misspelt = "examples/notifications/set_up.py", "custom-webhook/coleagues"
    assert_refused(shell.run("python", script, misspelt), f"{misspelt}: no saved notification")
    for _ in range(2):  # A second call creates no duplicates.
        done = shell.run("bash", "-euc", set_up)
        assert done.returncode == 0, done.stderr
    names = sorted(made["name"] for made in api("/automations/filter", {}))
    assert names == ["batchmill: a run failed", "batchmill: inputs are not ok"]

    def new_messages(count):
        """Wait for `count` more messages; return their texts, sorted."""
        nonlocal before
        before += count
        wait_for(lambda: len(receiver.messages) >= before, f"message {before}", 60)
        assert len(receiver.messages) == before
        assert {path for path, _ in receiver.messages} == {"/hook"}
        return sorted(message["text"] for _, message in receiver.messages[-count:])

    before = 0
    # A Completed run with a failed input sends the page's message. The server repeats it once.
    done = shell.run("bash", "-euc", run)
    assert done.returncode == 0, done.stderr
    expected = documented["text"].replace("/data/", f"{work}/")
    assert new_messages(1) == [expected]
    assert receiver.refused == 1
    assert receiver.messages[0][1].keys() == documented.keys()

    # For a Failed run, only the other automation sends a message. A run that executes nothing sends
    # none, so the failed input is executed again.
    (command,) = (line for line in run.splitlines() if line.startswith("batchmill run"))
    strict, allow = command.replace(" --max-failures 1", ""), command.split(" --output")[0]
    done = shell.run("bash", "-euc", f"batchmill retry parts\n{strict}")
    assert done.returncode == 1, done.stderr
    first, *rest = new_messages(1)[0].splitlines()
    assert first == "parts: split: Failed"
    (message,) = rest
    assert message.startswith("4 inputs: 3 ok, 1 failed. Group 1, b.txt: UnicodeDecodeError: ")
    assert "All reasons are in the artifact summary-parts-" in message

    # A run whose process was killed: the next run sets the state Crashed.
    last, *_ = api("/flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 1})
    lost = {"flow_id": last["flow_id"], "name": "parts: split", "state": {"type": "RUNNING"}}
    lost = api("/flow_runs/", lost)["id"]
    crashed = {"type": "CRASHED", "name": "Crashed", "message": "The process was killed."}
    api(f"/flow_runs/{lost}/set_state", {"state": crashed, "force": True})
    assert new_messages(1) == ["parts: split: Crashed\nThe process was killed."]

    # A run without failures sends no message.
    (work / "examples" / "words" / "b.txt").write_text("scaleable")
    assert shell.run("bash", "-euc", command).returncode == 0

    # A run with four failed inputs sends one message for the first failure, and one at the end.
    early = work / "examples" / "notifications" / "first_failure.yaml"
    (block,) = api("/block_documents/filter", {})
    early.write_text(early.read_text().replace("BLOCK_ID", block["id"]))
    (create,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    done = shell.run("bash", "-euc", create)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("a", "b", "c", "d"):
        (work / "examples" / "words" / f"{name}.txt").write_bytes(b"\xff")
    done = shell.run("bash", "-euc", f"{allow} --output all --max-failures 4 --batch-size 1")
    assert done.returncode == 0, done.stderr
    at_end, first = new_messages(2)
    assert at_end.startswith("all: split: Completed, with inputs that are not ok\n4 inputs: 4 ")
    assert re.match(r"all: split: an input has failed\n[abcd]\.txt: UnicodeDecodeError: ", first)

    # The server records each sent message, so no other message follows.
    noted = {"filter": {"event": {"name": ["prefect.automation.action.executed"]}}}
    wait_for(
        lambda: len(api("/events/filter", noted)["events"]) >= before, "the records of the messages"
    )
    assert len(api("/events/filter", noted)["events"]) == before == len(receiver.messages)
