"""The fixture that calls a command in this process."""

import pytest

from batchmill.cli.main import main
from batchmill.orchestration.server import embedded_server


@pytest.fixture
def command(capsys, monkeypatch):
    """Return a function that calls a command, and returns its exit code, output and errors."""
    monkeypatch.setenv("COLUMNS", "300")
    # Otherwise each `run` starts a process that imports Prefect's server, and most tests need none.
    monkeypatch.setattr(embedded_server, "has_server", lambda: True)

    def command(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return command
