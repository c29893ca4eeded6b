"""Each test starts as a process that has used no temporary server."""

import pytest

from batchmill.orchestration.server import embedded_server


@pytest.fixture(autouse=True)
def _new_session(monkeypatch):
    """Forget that an earlier test of this process called `batchmill.run`, which keeps servers."""
    monkeypatch.setattr(embedded_server, "_is_keeping", False)
    monkeypatch.setattr(embedded_server, "_kept", {})
