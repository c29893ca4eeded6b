"""A server of OpenAI's chat completions, which misbehaves on request: `python chat_server.py`.

The answer is the first line of the question, in upper case. Words in the question choose a fault,
so each input of a run can have a fault of its own:

| words | effect |
|---|---|
| `busy` | refused with 429 and a Retry-After header |
| `broken` | 500 |
| `silent` | no answer |
| `cut` | the connection is closed in the middle of the answer |
| `garbage` | the answer is no JSON |
| `late 5` | refused with 429 until 5 answers have been sent |

After each word except `late`, `once` or a number limits how often the fault occurs: `busy 2`.
"""

import argparse
import asyncio
import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from contextlib import contextmanager
from typing import NamedTuple

_CHAT, _COUNTS = "/v1/chat/completions", "/counts"
_FAULT = re.compile(r"\b(busy|broken|silent|cut|garbage)\b(?: (once|\d+)\b)?")
_LATE = re.compile(r"\blate (\d+)\b")
_REASONS = {200: "OK", 404: "Not Found", 429: "Too Many Requests", 500: "Internal Server Error"}
# Several hundred clients may connect at the same time.
_BACKLOG = 1024


class Settings(NamedTuple):
    """How the server behaves.

    Attributes:
        port: 0 for any free port.
        latency_seconds: The time before each answer. A refusal is sent at once.
        retry_after_seconds: The value of the Retry-After header.
        refuse_seconds: All requests are refused for this time after the first one.
        hold: No answer is sent before this number of requests has been in progress.
    """

    port: int = 0
    latency_seconds: float = 0.0
    retry_after_seconds: float = 0.2
    refuse_seconds: float = 0.0
    hold: int = 0


class Counts(NamedTuple):
    """The counts of a server.

    Attributes:
        requests: The number of requests by question.
        answers: The number of complete answers by question.
        early: The number of requests by question that came before the end of the Retry-After time.
        arrivals: The times of all requests, from `time.monotonic`.
        most_in_progress: The largest number of requests at the same time.
    """

    requests: Counter
    answers: Counter
    early: Counter
    arrivals: list[float]
    most_in_progress: int


class Reply(NamedTuple):
    """An answer to a request. With `is_cut`, only half of the body is sent."""

    status: int
    body: bytes
    headers: tuple[str, ...] = ()
    is_cut: bool = False


class ChatServer:
    """A running server: `url` is the value for OPENAI_BASE_URL."""

    def __init__(self, url):
        self.url = url

    def counts(self):
        """Return the counts up to now."""
        with urllib.request.urlopen(self.url.removesuffix("/v1") + _COUNTS, timeout=30) as answer:
            found = json.load(answer)
        counters = {name: Counter(found.pop(name)) for name in ("requests", "answers", "early")}
        return Counts(**counters, **found)


@contextmanager
def chat_server(**settings):
    """Run a server in a process of its own until the block ends; yield a ChatServer.

    `settings` are fields of Settings.
    """
    from harness.live import ended  # As a script, this file is in no package.

    command = [sys.executable, __file__, "--until-stdin-closes"]
    command += [f"{_option(name)}={value}" for name, value in settings.items()]
    pipe = subprocess.PIPE
    with (
        # The server reads its standard input, which closes if the process of the test is killed.
        subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process,
        ended(process),
    ):
        yield ChatServer(process.stdout.readline().strip())


class _Service:
    """Decides the replies, and counts."""

    def __init__(self, settings):
        self._settings = settings
        self._requests, self._answers, self._early = Counter(), Counter(), Counter()
        self._arrivals = []
        self._in_progress = self._most_in_progress = 0
        self._faults = Counter()
        # The end of the Retry-After time of each refused question.
        self._earliest = {}
        self._full = asyncio.Event()

    def counts(self):
        found = Counts(
            requests=self._requests,
            answers=self._answers,
            early=self._early,
            arrivals=self._arrivals,
            most_in_progress=self._most_in_progress,
        )
        return Reply(200, json.dumps(found._asdict()).encode())

    async def reply_to(self, question):
        now = time.monotonic()
        self._arrivals.append(now)
        self._requests[question] += 1
        if now < self._earliest.get(question, now):
            self._early[question] += 1
        self._in_progress += 1
        self._most_in_progress = max(self._most_in_progress, self._in_progress)
        if self._in_progress >= self._settings.hold:
            self._full.set()
        try:
            return await self._decide(question, now)
        finally:
            self._in_progress -= 1

    async def _decide(self, question, now):
        fault = self._fault_of(question)
        late = _LATE.search(question)
        is_late = late and self._answers.total() < int(late[1])
        if fault == "busy" or is_late or now < self._arrivals[0] + self._settings.refuse_seconds:
            return self._refusal(question)
        if fault == "silent":
            await asyncio.Event().wait()
        await asyncio.sleep(self._settings.latency_seconds)
        await self._full.wait()
        if fault == "broken":
            return Reply(500, b'{"error": {"message": "the model has crashed"}}')
        if fault == "garbage":
            return Reply(200, b"<html>Bad gateway</html>")
        if fault == "cut":
            return Reply(200, _completion(question), is_cut=True)
        self._answers[question] += 1
        return Reply(200, _completion(question))

    def _fault_of(self, question):
        """Return the fault of this request. None if it has no fault, or had all of them."""
        found = _FAULT.search(question)
        if not found:
            return None
        fault, times = found.groups()
        limit = 1 if times == "once" else int(times or sys.maxsize)
        if self._faults[question] >= limit:
            return None
        self._faults[question] += 1
        return fault

    def _refusal(self, question):
        seconds = self._settings.retry_after_seconds
        self._earliest[question] = time.monotonic() + seconds
        body = b'{"error": {"message": "too many requests"}}'
        return Reply(429, body, (f"Retry-After: {seconds:g}",))


def _completion(question):
    answer = question.strip().partition("\n")[0].upper()
    words = {"prompt_tokens": len(question.split()), "completion_tokens": len(answer.split())}
    message = {"role": "assistant", "content": answer}
    found = {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": words | {"total_tokens": sum(words.values())},
    }
    return json.dumps(found).encode()


class _Connection(asyncio.Protocol):
    """A connection of a client, which sends a request only after the answer to the last one."""

    def __init__(self, service):
        self._service = service
        self._received = b""
        self._task = None

    def connection_made(self, transport):
        self._transport = transport

    def connection_lost(self, _):
        if self._task:
            self._task.cancel()  # The request is not in progress if its client has left.

    def data_received(self, data):
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end:
            return
        length = re.search(rb"^content-length: *(\d+)", head, re.IGNORECASE | re.MULTILINE)
        if len(body) >= int(length[1] if length else 0):
            self._received = b""
            method, path, _ = head.decode("latin-1").split(" ", 2)
            self._task = asyncio.get_running_loop().create_task(self._serve(method, path, body))

    async def _serve(self, method, path, body):
        if (method, path) == ("POST", _CHAT):
            reply = await self._service.reply_to(json.loads(body)["messages"][-1]["content"])
        elif (method, path) == ("GET", _COUNTS):
            reply = self._service.counts()
        else:
            reply = Reply(404, f'{{"error": {{"message": "no such path: {path}"}}}}'.encode())
        lines = [
            f"HTTP/1.1 {reply.status} {_REASONS[reply.status]}",
            "Content-Type: application/json",
            f"Content-Length: {len(reply.body)}",
            *reply.headers,
        ]
        head = "\r\n".join([*lines, "\r\n"]).encode()
        if reply.is_cut:
            self._transport.write(head + reply.body[: len(reply.body) // 2])
            self._transport.close()
        else:
            self._transport.write(head + reply.body)


async def serve(settings, *, until_stdin_closes):
    """Print the URL, and serve requests until a signal, or until the standard input closes."""
    service = _Service(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if until_stdin_closes:
        loop.add_reader(sys.stdin, stop.set)
    server = await loop.create_server(
        lambda: _Connection(service), "127.0.0.1", settings.port, backlog=_BACKLOG
    )
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await stop.wait()


def _option(field):
    return f"--{field.replace('_', '-')}"


def main():
    """Run the server with the settings of the command line."""
    parser = argparse.ArgumentParser(description="A stand-in for a server of chat completions.")
    parser.add_argument("--until-stdin-closes", action="store_true")
    for name, default in Settings._field_defaults.items():
        parser.add_argument(_option(name), type=type(default), default=default)
    given = vars(parser.parse_args())
    until_stdin_closes = given.pop("until_stdin_closes")
    asyncio.run(serve(Settings(**given), until_stdin_closes=until_stdin_closes))


if __name__ == "__main__":
    main()
