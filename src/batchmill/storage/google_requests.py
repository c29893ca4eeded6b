"""Google Cloud Storage through gcsfs: how it is opened, and the requests that only it needs."""

import logging
from collections.abc import Mapping
from typing import Any

SCHEMES = ("gs", "gcs")
# By default, gcsfs first requests the size of a file, to divide large files.
ONE_REQUEST = {"concurrency": 1}
_CONNECT_SECONDS, _SILENT_SECONDS = 10, 30


def open_files(options: Mapping[str, Any]) -> Any:
    """Return the file system of gcsfs with these options."""
    from aiohttp import ClientTimeout

    # The subclass that fsspec opens finds the kind of each bucket with gRPC. Then gRPC hangs or
    # crashes in forks of this process, such as DataLoader workers.
    from gcsfs.core import GCSFileSystem

    log = logging.getLogger("gcsfs")
    if log.level == logging.NOTSET:
        log.setLevel(logging.CRITICAL)  # It logs tracebacks of errors that it also raises.
    # Without these limits, gcsfs waits forever for a server that has stopped responding.
    limits = ClientTimeout(sock_connect=_CONNECT_SECONDS, sock_read=_SILENT_SECONDS)
    return GCSFileSystem(**{"requests_timeout": limits, **options})


def is_google(files: Any) -> bool:
    """Return whether a file system is that of gcsfs."""
    return "gs" in files.protocol


def look_up(files: Any, bucket: str, key: str) -> dict[str, Any]:
    """Return the description of a file. `info` would also list the folder with this name."""
    found = files.call("GET", "b/{}/o/{}", bucket, key, json_out=True)
    return {**found, "type": "file"}


def check_bucket(files: Any, bucket: str) -> None:
    """Raise an error if a bucket does not exist or may not be read."""
    # The roles for Google's objects do not permit to describe their bucket.
    files.ls(bucket, max_results=1)
