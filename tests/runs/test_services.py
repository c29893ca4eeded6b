"""The step of examples/summaries against a real server, which misbehaves on request.

A run has one outcome for each input, and requests no answer twice.
"""

import asyncio
import json
import socket
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import psutil
import pytest
from harness.chat_server import chat_server
from harness.jobs import job_of
from harness.live import ROOT

from batchmill.core.planning.prepare import prepare
from batchmill.runs.execute import InThisProcess, execute
from batchmill.runs.workers import input_feed
from batchmill.runs.workers.input_feed import Pace

RETRIES = 2
# Long enough that healthy inputs do not time out on a busy machine.
TIMEOUT = 15.0
# Longer than the pause before a first retry without a Retry-After header, which is half a second.
RETRY_AFTER = 0.8
CONNECTIONS = 300


class Expected(NamedTuple):
    """The outcome of an input, and the number of its requests and answers."""

    kind: str
    error: str = ""
    message: str = ""
    requests: int = 1 + RETRIES
    answers: int = 0


# The expected outcome by the words that choose a fault in the server.
FAULTS = {
    "busy 2": Expected("ok", answers=1),
    "busy": Expected("failed", "RetryAfter", "the server is busy: {"),
    "broken once": Expected("ok", requests=2, answers=1),
    "broken": Expected("failed", "HTTPStatusError", "Server error '500 Internal Server Error'"),
    "cut once": Expected("ok", requests=2, answers=1),
    "cut": Expected("failed", "RemoteProtocolError", "peer closed connection without sending comp"),
    "garbage once": Expected("ok", requests=2, answers=1),
    "garbage": Expected("failed", "ValueError", "no chat completion: <html>Bad gateway</html>"),
    "silent": Expected("timeout", "Timeout", "still running after 15 s", requests=1),
}
HEALTHY = Expected("ok", requests=1, answers=1)


@pytest.fixture
def summarise(tmp_path, monkeypatch):
    """Return a function that runs the step over texts, and returns the outcomes in their order."""
    monkeypatch.chdir(ROOT / "examples" / "summaries")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (tmp_path / "in").mkdir()

    def run(server, texts, *, num_workers=1, **options):
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        for number, text in enumerate(texts):
            (tmp_path / "in" / f"{number:03d}.txt").write_text(text)
        options["num_workers"] = num_workers
        params = {"model": "small"}
        job = job_of(
            tmp_path / "in", "summarise:Summarise", tmp_path / "out", params=params, **options
        )
        seen = []
        execute(prepare(job), InThisProcess(cores=num_workers, on_outcome=seen.append))
        return sorted(seen, key=lambda outcome: Path(outcome.input).name)

    return run


def healthy(count):
    return [f"Document {number}\n\nAbout nothing." for number in range(count)]


@pytest.mark.slow
def test_every_fault_of_a_service_at_once(summarise):
    expected = {f"About {fault}": why for fault, why in FAULTS.items()}
    expected |= dict.fromkeys(healthy(40), HEALTHY)
    with chat_server(retry_after_seconds=RETRY_AFTER) as server:
        outcomes = summarise(server, [*expected], num_workers=2, retries=RETRIES, timeout=TIMEOUT)
        counts = server.counts()
        again = summarise(server, [*expected], num_workers=2, retries=RETRIES, timeout=TIMEOUT)
        counts_again = server.counts()
    assert len(outcomes) == len(expected)
    for outcome, (text, why) in zip(outcomes, expected.items(), strict=True):
        assert (outcome.kind, outcome.error) == (why.kind, why.error), outcome
        assert outcome.message.startswith(why.message), outcome
        assert outcome.attempts == counts.requests[text] == why.requests, text
        assert counts.answers[text] == why.answers, text
        if why.kind == "ok":
            (row,) = json.loads(outcome.rows)
            assert row["summary"] == text.partition("\n")[0].upper()
    assert not counts.early
    assert (again, counts_again) == ([], counts)


def test_other_inputs_continue_while_one_is_refused(summarise):
    # It is refused until the others have their answers. The largest input begins first.
    late = "The late 11" + "\n" * 1000
    texts = [late, *healthy(11)]
    with chat_server(latency_seconds=0.05) as server:
        outcomes = summarise(server, texts, concurrency=4, retries=5)
        counts = server.counts()
    assert [outcome.kind for outcome in outcomes] == ["ok"] * 12
    assert counts.requests[late] > 1
    assert counts.answers == dict.fromkeys(texts, 1)


@pytest.mark.slow
def test_a_service_that_refuses_everything_for_a_second_delays_the_run(summarise):
    texts = healthy(20)
    with chat_server(refuse_seconds=1.0) as server:
        outcomes = summarise(server, texts, retries=5)
        counts = server.counts()
    assert [outcome.kind for outcome in outcomes] == ["ok"] * 20
    assert counts.answers == dict.fromkeys(texts, 1)
    assert all(1 < number <= 6 for number in counts.requests.values())


@pytest.mark.slow
def test_the_concurrency_is_reached_and_never_exceeded(summarise):
    texts = healthy(120)
    # The server sends no answer before 40 requests have been in progress.
    with chat_server(hold=40, latency_seconds=0.02) as server:
        outcomes = summarise(server, texts, concurrency=40, timeout=30)
        counts = server.counts()
    assert [outcome.kind for outcome in outcomes] == ["ok"] * 120
    assert counts.requests == counts.answers == dict.fromkeys(texts, 1)
    assert counts.most_in_progress == 40


@pytest.mark.slow
def test_the_rate_limits_the_workers_and_retries_together(summarise, monkeypatch):
    begun = []

    def make_pace(seconds, now):
        begun.append(now)
        return Pace(seconds, now)

    monkeypatch.setattr(input_feed, "Pace", make_pace)
    texts = [*healthy(70), *(f"About busy 1, number {number}" for number in range(10))]
    with chat_server() as server:
        outcomes = summarise(server, texts, num_workers=2, rate="40/s", retries=1)
        counts = server.counts()
    assert [outcome.kind for outcome in outcomes] == ["ok"] * 80
    assert len(counts.arrivals) == 90
    # A busy machine delays requests. None of them can be early.
    (begin,) = begun
    arrivals = enumerate(sorted(counts.arrivals), 1)
    assert all(number <= 40 * (at - begin) for number, at in arrivals)


def test_the_server_answers_many_connections_at_a_time_and_leaves_nothing():
    before = set(psutil.Process().children())
    with chat_server(hold=CONNECTIONS) as server:
        answers = asyncio.run(post_all(server.url, healthy(CONNECTIONS)))
        counts = server.counts()
        assert len(set(psutil.Process().children()) - before) == 1
    assert answers == [f"DOCUMENT {number}" for number in range(CONNECTIONS)]
    assert counts.most_in_progress == counts.requests.total() == CONNECTIONS
    assert counts.answers == counts.requests
    assert set(psutil.Process().children()) <= before
    parts = urlsplit(server.url)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((parts.hostname, parts.port))


async def post_all(url, questions):
    """Send the questions at the same time; return the answers. It is faster than httpx."""
    return await asyncio.gather(*(post(url, question) for question in questions))


async def post(url, question):
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    messages = [{"role": "user", "content": question}]
    body = json.dumps({"model": "small", "messages": messages}).encode()
    head = f"POST {parts.path}/chat/completions HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line[15:]) for line in answer.splitlines() if line[:15] == b"Content-Length:")
    found = json.loads(await reader.readexactly(length))
    writer.close()
    await writer.wait_closed()
    return found["choices"][0]["message"]["content"]
