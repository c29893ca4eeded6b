"""Fixtures of the tests of stores."""

from datetime import timedelta

import pytest

from batchmill.core.storage import obstore_s3
from batchmill.core.storage.retries import retry_remote


@pytest.fixture
def short_pauses(monkeypatch):
    """Shorten the pauses before all retries, in this process and in its forks.

    The number of retries is the same.
    """
    monkeypatch.setattr(retry_remote, "pauses", (0.0,) * len(retry_remote.pauses))
    # The libraries get their pauses when a connection is opened.
    monkeypatch.setattr(obstore_s3, "timedelta", lambda **span: timedelta(**span) / 20)
    monkeypatch.setattr("botocore.retryhandler.delay_exponential", lambda **_: 0.01)
