"""A proxy in front of an S3 server. It records the requests, and may answer some of them itself."""

import http.client
import re
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import urlsplit

from harness.live import serving

_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive", "date", "server"}


class Request(NamedTuple):
    """A request: its method, its path with the bucket, its query, and what it is signed with.

    That is the id of a key in S3, or a token in Google's storage.
    """

    method: str
    path: str
    query: str
    signer: str


class Reply(NamedTuple):
    """An answer of the proxy itself. With `cut`, only this part of the server's body is sent."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = {}  # noqa: RUF012  # Never changed.
    cut: float | None = None


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address, react):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.address, self.react, self.requests, self.sent = address, react, [], []
        self.waits = 0  # The requests whose client waits before it sends the body.
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def answer(self):
        parts = urlsplit(self.path)
        signature = self.headers.get("Authorization", "")
        signer = re.sub(r"^Bearer |^.*Credential=|/.*", "", signature)
        request = Request(self.command, parts.path, parts.query, signer)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append(request)
        reply = self.server.react(request)
        if reply and reply.cut is None:
            self._send(reply.status, reply.headers, reply.body, len(reply.body))
            return
        status, headers, content = self._ask(body)
        length = headers.pop("Content-Length", len(content))
        if reply:
            content = content[: int(len(content) * reply.cut)]
            self.close_connection = True
        self._send(status, headers, content, length)

    def handle_expect_100(self):
        self.server.waits += 1
        return super().handle_expect_100()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815

    def _ask(self, body):
        server = http.client.HTTPConnection(self.server.address, timeout=60)
        headers = {k: v for k, v in self.headers.items() if k.lower() != "connection"}
        server.request(self.command, self.path, body, headers)
        found = server.getresponse()
        content = found.read()
        server.close()
        headers = {k: v for k, v in found.getheaders() if k.lower() not in _HOP}
        if self.command == "HEAD":
            headers["Content-Length"] = found.getheader("Content-Length", "0")
        return found.status, headers, content

    def _send(self, status, headers, content, length):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command != "HEAD":
            self.server.sent.append(len(content))
            with suppress(ConnectionError):  # The client may have all that it needs.
                self.wfile.write(content)

    def log_message(self, *_):
        """Print nothing."""


@contextmanager
def s3_proxy(url, react=lambda request: None):
    """Yield a proxy of the server at `url`, with `url`, `requests` and the sizes that it `sent`.

    `react` is called with each request, and returns a Reply, or None to pass the request on.
    """
    with serving(_Server(urlsplit(url).netloc, react)) as server:
        yield server
