"""Run cells in a real Jupyter kernel, interrupt them, and kill the kernel."""

import queue
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from jupyter_client.manager import KernelManager

SECONDS = 180


class Output(NamedTuple):
    """An output of a cell: its kind, as in the file of a notebook, and its text."""

    kind: str
    text: str


class Shown:
    """The outputs of a cell, from the kernel's messages."""

    def __init__(self):
        self.outputs = []
        # The positions of the outputs that the kernel may update.
        self._displays = {}

    def add(self, kind, content):
        """Add the output of a message. A message without an output changes nothing."""
        if kind == "stream":
            # The text of a print may arrive in several pieces.
            is_more = self.outputs and self.outputs[-1].kind == kind
            before = self.outputs.pop().text if is_more else ""
            self.outputs.append(Output(kind, before + content["text"]))
        elif kind == "error":
            self.outputs.append(Output(kind, "\n".join(content["traceback"])))
        elif kind in ("display_data", "execute_result"):
            name = content.get("transient", {}).get("display_id")
            self._displays[name] = len(self.outputs)
            self.outputs.append(Output(kind, content["data"]["text/plain"]))
        elif kind == "update_display_data":
            position = self._displays[content["transient"]["display_id"]]
            text = content["data"]["text/plain"]
            self.outputs[position] = self.outputs[position]._replace(text=text)


class Kernel:
    """A running kernel."""

    def __init__(self, manager, client):
        self.manager = manager
        self._client = client

    def start(self, code):
        """Start to execute a cell, and return its id."""
        return self._client.execute(code)

    def shown(self, cell):
        """Wait for the end of a cell. Return its outputs as a notebook shows them at the end."""
        shown = Shown()
        while True:
            message = self._message()
            kind, content = message["msg_type"], message["content"]
            if message["parent_header"].get("msg_id") != cell:
                continue
            if kind == "status" and content["execution_state"] == "idle":
                return shown.outputs
            shown.add(kind, content)

    def outputs(self, cell):
        """Wait for the end of a cell. Return the texts of its outputs."""
        return [output.text for output in self.shown(cell)]

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
    return {"IPYTHONDIR": str(folder / "ipython"), "JUPYTER_RUNTIME_DIR": str(folder / "jupyter")}


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
