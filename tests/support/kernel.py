"""Run cells in a real Jupyter kernel, interrupt them, and kill the kernel."""

import queue
from contextlib import contextmanager
from pathlib import Path

from jupyter_client.manager import KernelManager

SECONDS = 180


class Kernel:
    """A running kernel."""

    def __init__(self, manager, client):
        self.manager = manager
        self._client = client

    def start(self, code):
        """Start to execute a cell, and return its id."""
        return self._client.execute(code)

    def outputs(self, cell):
        """Wait for the end of a cell. Return the texts of its outputs, without updates."""
        shown = []
        while True:
            message = self._message()
            kind, content = message["msg_type"], message["content"]
            if message["parent_header"].get("msg_id") != cell:
                continue
            if kind == "status" and content["execution_state"] == "idle":
                return shown
            if kind == "stream":
                shown.append(content["text"])
            elif kind == "error":
                shown.append("\n".join(content["traceback"]))
            elif kind in ("display_data", "execute_result"):
                shown.append(content["data"]["text/plain"])

    def execute(self, code):
        """Execute a cell, and return the texts of its outputs."""
        return self.outputs(self.start(code))

    def interrupt(self):
        """Send SIGINT to the kernel's process group, as Jupyter does."""
        self.manager.interrupt_kernel()

    def _message(self):
        while True:
            try:
                return self._client.get_iopub_msg(timeout=1)
            except queue.Empty:
                assert self.manager.is_alive(), "the kernel has ended"


def kernel_environment(folder: Path):
    """Return the variables that keep Jupyter out of the user's folders."""
    return {
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(folder / "jupyter"),
    }


@contextmanager
def kernel_in(shell, scratch):
    """Start a kernel in the folder of a shell, and end it with the block."""
    environment = shell.environment | kernel_environment(scratch)
    manager = KernelManager(kernel_name="python3", connection_file=str(scratch / "connection.json"))
    manager.start_kernel(env=environment, cwd=str(shell.folder))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=SECONDS)
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        if manager.is_alive():
            manager.shutdown_kernel()
        manager.cleanup_resources()
