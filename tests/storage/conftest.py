"""Fixtures for tests of stores."""

import os
from contextlib import contextmanager

import pytest
from object_store import forget_connections
from s3_proxy import s3_proxy


@pytest.fixture
def proxied(bucket, monkeypatch):
    """Return a context manager: a proxy that all processes use as their S3 server."""

    @contextmanager
    def start(react=lambda request: None):
        with (
            s3_proxy(os.environ["AWS_ENDPOINT_URL"], react) as proxy,
            monkeypatch.context() as set_,
        ):
            set_.setenv("AWS_ENDPOINT_URL", proxy.url)
            forget_connections()
            yield proxy
        forget_connections()

    return start
