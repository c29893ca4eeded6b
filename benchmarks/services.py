"""Compare an async step with a bare asyncio loop that uses the same client, and with Ray Data.

python -m benchmarks.services [--inputs 5000] [--latency 0.2] [--concurrency 100 500]

A server of this machine answers each request after the latency. The time begins with the first
request and ends with the last answer, so it has no start-up. A bare loop has as many requests at a
time as the two workers together.

A map task of Ray Data has four async batches at a time by default. Here, each of the two actors has
two tasks (`max_concurrency=2`), and each task has half of the concurrency. The limit is the
environment variable RAY_DATA_DEFAULT_ASYNC_BATCH_UDF_MAX_CONCURRENCY, in plan_udf_map_op.py of Ray.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

WORKERS = 2
SERVER = Path(__file__).parents[1] / "tests" / "support" / "harness" / "chat_server.py"
STEP = '''
import os
import aiohttp

class Ask:
    """Ask the service about a text."""

    async def __aenter__(self):
        connector = aiohttp.TCPConnector(limit=0)
        self.session = aiohttp.ClientSession(connector=connector)
        return self

    async def __aexit__(self, *error):
        await self.session.close()

    async def __call__(self, source):
        return {"answer": await ask(self.session, source.read_text())}

async def ask(session, text):
    url = os.environ["SERVICE_URL"] + "/chat/completions"
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    async with session.post(url, json=body) as response:
        return (await response.json())["choices"][0]["message"]["content"]
'''
RAY_DATA = """
import os, sys
inputs, concurrency = sys.argv[1], int(sys.argv[2])
# Ray reads it when it is imported.
os.environ["RAY_DATA_DEFAULT_ASYNC_BATCH_UDF_MAX_CONCURRENCY"] = str(concurrency // 2)
import aiohttp, ray
sys.path.insert(0, ".")
import asking

class Ask:
    def __init__(self):
        self.session = None

    async def __call__(self, batch):
        if not self.session:
            self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        text = batch["bytes"][0].decode()
        yield {"answer": [await asking.ask(self.session, text)]}

ray.init(num_cpus=2, logging_level="ERROR", include_dashboard=False)
# Each actor needs half a core, because the tasks that read files need one, too.
found = ray.data.read_binary_files(inputs, override_num_blocks=16).map_batches(
    Ask, batch_size=1, concurrency=2, max_concurrency=2, num_cpus=0.5
)
found.write_parquet("ray-out")
"""
BARE_LOOP = """
import asyncio, sys
from pathlib import Path
from benchmarks.services import bare_loop
asyncio.run(bare_loop(Path(sys.argv[1]), int(sys.argv[2])))
"""
LONGEST_SECONDS = 300


@contextmanager
def service(latency: float) -> Iterator[str]:
    """Run the server. Yields its URL."""
    command = [sys.executable, str(SERVER), "--latency-seconds", str(latency)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        try:
            yield server.stdout.readline().split()[-1]
        finally:
            server.terminate()


async def _counts(url: str) -> dict[str, Any]:
    place = url.removesuffix("/v1") + "/counts"
    async with aiohttp.ClientSession() as session, session.get(place) as response:
        found: dict[str, Any] = await response.json()
        return found


def seconds_of(url: str, latency: float) -> float:
    """Return the time between the first request and the last answer."""
    arrivals = asyncio.run(_counts(url))["arrivals"]
    return float(max(arrivals) - min(arrivals) + latency)


async def bare_loop(folder: Path, concurrency: int) -> None:
    """Request an answer for each file, and write all answers to one file."""
    module: dict[str, Any] = {}
    exec(STEP, module)
    files, answers = iter(sorted(folder.iterdir())), {}

    async def work(session: aiohttp.ClientSession) -> None:
        for file in files:
            answers[file.name] = await module["ask"](session, file.read_text())

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(work(session) for _ in range(concurrency)))
    (folder.parent / "bare.json").write_text(json.dumps(answers))


def contenders(concurrency: int) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the command of each tool."""
    both = str(WORKERS * concurrency)
    yield "bare loop", [sys.executable, "-c", BARE_LOOP, "in", both]
    batchmill = [sys.executable, "-m", "batchmill", "run", "in", "--step", "asking:Ask"]
    batchmill += ["--output", f"out-{concurrency}", "--num-workers", str(WORKERS)]
    yield "batchmill", [*batchmill, "--concurrency", str(concurrency)]
    yield "Ray Data", [sys.executable, "-c", RAY_DATA, "in", str(concurrency)]


def measure(tool: str, command: list[str], folder: Path, latency: float) -> tuple[float, float]:
    """Return the seconds of a tool without and with its start-up."""
    with service(latency) as url:
        settings = {"PREFECT_HOME": str(folder / "prefect"), "SERVICE_URL": url}
        settings |= {"PREFECT_LOGGING_LEVEL": "ERROR", "PYTHONPATH": str(Path(__file__).parents[1])}
        begun = time.monotonic()
        done = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | settings,
            capture_output=True,
            text=True,
            timeout=LONGEST_SECONDS,
        )
        if done.returncode:
            raise SystemExit(f"{tool} failed:\n{done.stderr}")
        return seconds_of(url, latency), time.monotonic() - begun


def main() -> None:
    """Print a table for each concurrency."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=5000)
    parser.add_argument("--latency", type=float, default=0.2)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[100, 500])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in").mkdir()
        for number in range(options.inputs):
            (folder / "in" / f"{number:05d}.txt").write_text(f"text {number}")
        (folder / "asking.py").write_text(STEP)
        for concurrency in options.concurrency:
            title = f"{WORKERS} x {concurrency} at a time"
            print(f"| {title} | seconds | with the start-up | bare loop / tool |")
            print("|---|---|---|---|")
            bare = 0.0
            for tool, command in contenders(concurrency):
                seconds, whole = measure(tool, command, folder, options.latency)
                bare = bare or seconds
                ratio = bare / seconds
                print(f"| {tool} | {seconds:.2f} | {whole:.1f} | {ratio:.2f} |", flush=True)
            print()


if __name__ == "__main__":
    main()
