"""Processes that write shards. They end with this process, also when it is killed.

They do not import the caller's main module, so a script needs no `if __name__ == "__main__"`.
"""

import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from batchmill.errors import WorkerError

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Map(Protocol):
    """Calls a function of a module with each item, and yields the results in order."""

    def __call__(
        self, function: Callable[[_Item], _Result], items: Iterable[_Item], /
    ) -> Iterator[_Result]:
        """Yield the results. Raises the first error of the function."""
        ...


@contextmanager
def worker_pool(count: int) -> Iterator[Map]:
    """Yield a `map` that uses `count` processes; the built-in one for one process."""
    if count < 2:
        yield map
        return
    with ExitStack() as stack:
        idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        threads = stack.enter_context(ThreadPoolExecutor(count))
        for _ in range(count):
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # Ctrl-C in a terminal must reach only this process, which then ends the others.
                start_new_session=True,
            )
            stack.callback(_end, process)
            idle.put(process)

        def call(function: Callable[[Any], Any], item: Any) -> Any:
            process = idle.get()
            try:
                return _ask(process, function, item)
            finally:
                idle.put(process)

        def each(function: Callable[[Any], Any], items: Iterable[Any], /) -> Iterator[Any]:
            waiting: deque[Future[Any]] = deque()
            for item in items:
                waiting.append(threads.submit(call, function, item))
                if len(waiting) >= 2 * count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

        yield each


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, wait for its end, and close its pipes."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe:
            with suppress(BrokenPipeError):  # It had not read all that was sent to it.
                pipe.close()


def _ask(process: subprocess.Popen[bytes], function: Callable[[Any], Any], item: Any) -> Any:
    assert process.stdin  # noqa: S101  # For the type checker.
    assert process.stdout  # noqa: S101
    try:
        pickle.dump((function, item), process.stdin)
        process.stdin.flush()
        result, error = pickle.load(process.stdout)  # noqa: S301  # Our own process wrote it.
    except (EOFError, OSError, pickle.UnpicklingError) as end:
        raise WorkerError(
            "A process that writes shards has ended. The cause may be too little memory: use fewer "
            "processes (--num-workers). Run the same command again to resume."
        ) from end
    if error is not None:
        raise error
    return result


def serve() -> None:
    """Call the functions that the parent sends to stdin, and write the results to stdout."""
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # Libraries may print.
        calls: SimpleQueue[tuple[Callable[[Any], Any], Any]] = SimpleQueue()
        threading.Thread(target=_receive, args=[calls], daemon=True).start()
        while True:
            function, item = calls.get()
            try:
                answer: tuple[Any, Exception | None] = function(item), None
            except Exception as error:  # noqa: BLE001  # The parent raises it.
                answer = None, error
            pickle.dump(answer, answers)
            answers.flush()


def _receive(calls: "SimpleQueue[tuple[Callable[[Any], Any], Any]]") -> None:
    """Queue the calls. End this process when the parent has ended, even within a call."""
    while True:
        try:
            calls.put(pickle.load(sys.stdin.buffer))  # noqa: S301  # The parent wrote it.
        except EOFError:
            os._exit(1)


if __name__ == "__main__":
    serve()
