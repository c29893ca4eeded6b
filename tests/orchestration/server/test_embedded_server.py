"""A command prepares the temporary server before it needs it, if no server is running."""

import json
import socket
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from batchmill.orchestration.server.embedded_server import has_server, is_running, preparing_server
from batchmill.orchestration.server.server_process import RECORD, SERVER_LOCK, folder_in, try_lock


class Healthy(BaseHTTPRequestHandler):
    """Responds like a Prefect server that is healthy."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        """Log nothing."""


@pytest.fixture
def started(monkeypatch, tmp_path):
    """Return the commands of the processes that are started. They end at once."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    commands = []
    popen = subprocess.Popen

    def start(command, **options):
        commands.append(command)
        return popen(["true"], **options)

    monkeypatch.setattr(subprocess, "Popen", start)
    return commands


def record(home, port):
    (folder_in(home) / RECORD).write_text(json.dumps({"url": f"http://127.0.0.1:{port}/api"}))


def test_a_server_is_prepared_once(started):
    with preparing_server(), preparing_server():
        pass
    assert len(started) == 1


def test_a_running_server_is_used(started, tmp_path):
    with HTTPServer(("127.0.0.1", 0), Healthy) as server:
        record(tmp_path, server.server_port)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            assert has_server()
            with preparing_server():
                pass
        finally:
            server.shutdown()
            thread.join()
        assert started == []
    # The file of a server that was killed stays.
    assert not has_server()
    with preparing_server():
        pass
    assert len(started) == 1


def test_another_program_may_use_the_port_of_a_server_that_was_killed(tmp_path, started):
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer():
            connection, _ = other.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"SSH-2.0-other\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        record(tmp_path, other.getsockname()[1])
        assert not has_server()
        thread.join()
    assert started == []


def test_a_server_that_is_too_busy_to_respond_is_running(tmp_path):
    record(tmp_path, 1)
    assert not is_running(tmp_path)  # The file of a server that was killed.
    with (folder_in(tmp_path) / SERVER_LOCK).open("w") as server:
        assert try_lock(server)
        assert is_running(tmp_path)
