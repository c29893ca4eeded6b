"""Opens an input for a step that takes an open file and not a path."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from batchmill.execution.failures import UnreadPartError
from batchmill.execution.staging import Input
from batchmill.storage import remote, transfer
from batchmill.storage.addresses import parse_address
from batchmill.storage.fingerprints import Fingerprint
from batchmill.storage.ranges import RangeReader
from batchmill.urls import is_web


def reads_in_parts(url: str, planned: remote.FileStat | None) -> bool:
    """Return whether an input is read in parts, if its step takes an open file.

    Args:
        url: The URL of the input. Empty for a local file.
        planned: Its state when the run was planned.
    """
    if planned is None or is_web(url) or parse_address(planned.etag or ""):
        # Some web servers send only whole files. A file in a pack is small.
        return False
    # S3 rejects a request for a part of an empty file. Without an ETag or a time, only the content
    # shows a change.
    return planned.size > 0 and planned.mtime_ns != remote.UNKNOWN_TIME


@contextmanager
def opened(item: Input, seen: Fingerprint) -> Iterator[BinaryIO]:
    """Open an input for reading. The name of the file has no folder.

    Args:
        item: The input, after `fetch_and_read`.
        seen: The fingerprint that it returned.

    Raises:
        UnreadPartError: The store failed in the block, or the input changed.
    """
    name = os.path.basename(item.path)
    if not item.in_parts or os.path.getsize(item.path) == seen.size:
        whole = io.FileIO(item.path)
        whole.name = name
        with io.BufferedReader(whole) as file:
            yield file
        return
    # A request for a part describes only the input's own file, and not its content.
    state = seen._replace(companions=None, content="")
    head = Path(item.path).read_bytes()
    parts = RangeReader(
        name,
        seen.size,
        head,
        lambda start, stop: transfer.read_range(item.url, start, stop, state),
    )
    try:
        with io.BufferedReader(parts) as file:
            yield file
    finally:
        if parts.fault:
            raise UnreadPartError(parts.fault)
