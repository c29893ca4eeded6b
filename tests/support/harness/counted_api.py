"""A reverse proxy in front of a Prefect server, which counts the calls."""

import re
import socket
import socketserver
import threading
from collections import Counter
from contextlib import contextmanager, suppress
from typing import NamedTuple
from urllib.parse import urlsplit

import psutil

from harness.live import serving

_CHUNK = 65_536
# The start of the answer when SQLite is locked.
_BUSY = b"HTTP/1.1 503 "
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}")


class Call(NamedTuple):
    """A call to the API: the caller, and the route with each id replaced by `ID`."""

    caller: str
    route: str


class CountedApi:
    """The proxy's URL, and the calls that it counted."""

    def __init__(self, url):
        self.url = url
        # The next request whose body contains this is answered with an error.
        self.fails = None
        self._calls = Counter()
        self._lock = threading.Lock()

    def note(self, call):
        with self._lock:
            self._calls[call] += 1

    def forget(self, call):
        """Do not count a call that the server was too busy to answer. The client repeats it."""
        with self._lock:
            self._calls[call] -= 1

    def take(self):
        """Return the number of each call since the last `take`."""
        with self._lock:
            calls, self._calls = self._calls, Counter()
        return +calls


@contextmanager
def counted_api(api_url):
    """Run a proxy in front of a server's API until the block ends.

    All clients must have ended by then.
    """
    target = urlsplit(api_url)

    class Connection(socketserver.StreamRequestHandler):
        def handle(self):
            self.caller = "Ray worker" if is_ray_worker(self.client_address[1]) else "driver"
            with (
                suppress(OSError),  # A killed client closes no connection.
                socket.create_connection((target.hostname, target.port)) as server,
            ):
                answers = threading.Thread(target=self._pass_answers_on, args=(server,))
                answers.start()
                try:
                    while self._pass_request_on(server):
                        pass
                finally:
                    with suppress(OSError):
                        server.shutdown(socket.SHUT_RDWR)
                    answers.join()

        def _pass_request_on(self, server):
            """Forward a request; return whether another request may follow."""
            head = []
            while (line := self.rfile.readline()).strip():
                head.append(line)
            if not head:
                return False
            method, path, _ = head[0].decode().split()
            headers = dict(line.decode().lower().split(":", 1) for line in head[1:])
            route = _ID.sub("ID", urlsplit(path).path.removeprefix(target.path))
            self.call = Call(self.caller, f"{method} {route}")
            counted.note(self.call)
            if "transfer-encoding" in headers:
                raise ValueError(f"{method} {path}: the request has no content-length")
            body = self.rfile.read(int(headers.get("content-length", 0)))
            if counted.fails and counted.fails in body:
                counted.fails = None
                self.connection.sendall(b"HTTP/1.1 500 Error\r\nContent-Length: 0\r\n\r\n")
                return True
            server.sendall(b"".join([*head, b"\r\n", body]))
            if "upgrade" not in headers:
                return True
            while data := self.rfile.read1(_CHUNK):  # A web socket counts as one call.
                server.sendall(data)
            return False

        def _pass_answers_on(self, server):
            with suppress(OSError):
                while data := server.recv(_CHUNK):
                    if data.startswith(_BUSY):
                        counted.forget(self.call)
                    self.connection.sendall(data)
                self.connection.shutdown(socket.SHUT_WR)

    proxy = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection)
    counted = CountedApi(f"http://127.0.0.1:{proxy.server_address[1]}{target.path}")
    with serving(proxy):
        yield counted


def is_ray_worker(port):
    """Return whether a Ray process holds a local port."""
    for found in psutil.net_connections("tcp4"):
        if found.laddr.port == port and found.pid:
            with suppress(psutil.Error):
                return any("ray::" in part for part in psutil.Process(found.pid).cmdline())
    return False
