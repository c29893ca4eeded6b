"""Requests to S3 and Google Cloud Storage, where their libraries would send several.

Each function is called with a file system of fsspec and a path in it. It raises the errors of the
library. For other providers, it calls the function that all libraries have.
"""

import errno
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from io import BytesIO
from typing import Any

GOOGLE_SCHEMES = ("gs", "gcs")
_CONNECT_SECONDS, _SILENT_SECONDS = 10, 30
# The first request for a file fetches up to this number of bytes: the whole of a small file.
_FIRST_BYTES = 2**20
# A larger upload waits until the server accepts it.
_SENT_AT_ONCE_BYTES = 2**20
# The statuses with which a web server says that there is no file.
_GONE = (404, 410)


def open_google(options: Mapping[str, Any]) -> Any:
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


def send_at_once(files: Any) -> None:
    """Let small uploads take one round trip. May be called again.

    botocore waits before each upload until the server says that it may continue.
    """
    if _is_s3(files):
        files.s3.meta.events.register_last(
            "before-call.s3", _without_question, unique_id="batchmill-send-at-once"
        )


def _without_question(params: dict[str, Any], **_: Any) -> None:
    body = params.get("body")
    if isinstance(body, BytesIO) and body.getbuffer().nbytes < _SENT_AT_ONCE_BYTES:
        params["headers"].pop("Expect", None)


def look_up(files: Any, path: str) -> dict[str, Any]:
    """Return the description of a file, with one request.

    The `info` of S3 and Google would also search for a folder with this name.
    """
    bucket, _, key = path.partition("/")
    if key and _is_s3(files):
        return _look_up_s3(files, path)
    if key and _is_google(files):
        found = files.call("GET", "b/{}/o/{}", bucket, key, json_out=True)
        return {**found, "type": "file"}
    try:
        details: dict[str, Any] = files.info(path)
    except FileNotFoundError as error:
        # fsspec reports every error of a web server as a missing file.
        cause = error.__cause__
        if cause and "http" in files.protocol and getattr(cause, "status", 0) not in _GONE:
            raise cause from None
        raise
    return details


def _look_up_s3(files: Any, path: str) -> dict[str, Any]:
    bucket, key, version = files.split_path(path)
    request = {"Bucket": bucket, "Key": key, **({"VersionId": version} if version else {})}
    try:
        answer = files.call_s3("head_object", files.kwargs, **request)
    except OSError as error:
        if error.errno == errno.EINVAL or isinstance(error, PermissionError):
            # The answer to a HEAD has no body, so it does not say whether the credentials have
            # expired. The answer to a GET does.
            files.cat_file(path, start=0, end=1)
        raise
    return {**answer, "type": "file", "size": answer["ContentLength"]}


def small_file(files: Any, path: str) -> bytes:
    """Return the content of a small file in S3, with one request. Empty for any other file."""
    if not _is_s3(files):
        return b""
    try:
        data: bytes = files.cat_file(path, start=0, end=_FIRST_BYTES)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return b""  # S3 rejects the range if the file is empty.
        raise
    return data if len(data) < _FIRST_BYTES else b""


def whole_file(files: Any, path: str) -> bytes:
    """Return the content of a file, with one request."""
    # By default, s3fs first requests the size, to divide large files.
    options = {"max_concurrency": 1} if _is_s3(files) else {}
    return bytes(files.cat_file(path, **options))


def fetch(files: Any, path: str, target: str) -> None:
    """Fetch a file to a local path, with one request."""
    # By default, gcsfs first requests the size, to divide large files.
    files.get_file(path, target, **({"concurrency": 1} if _is_google(files) else {}))


def list_entries(files: Any, path: str, *, deep: bool) -> Iterable[dict[str, Any]]:
    """Return the files below a folder. A thousand are one request.

    Args:
        files: The file system.
        path: The path of the folder.
        deep: False to list the files and folders in it, instead of all files below it.
    """
    if _is_s3(files):
        return _list_s3(files, path, "" if deep else "/")
    list_all = files.find if deep else files.ls
    entries: Any = list_all(path, detail=True)
    if isinstance(entries, dict):
        return entries.values()
    # adlfs returns a list if the path itself is a file.
    return [] if deep else list(entries)


def _list_s3(files: Any, path: str, delimiter: str) -> Iterator[dict[str, Any]]:
    # The listings of s3fs send up to three more requests if the folder is empty, and many are.
    bucket, key, _ = files.split_path(path.rstrip("/"))
    request = {"Bucket": bucket, "Prefix": f"{key}/" if key else "", "Delimiter": delimiter}
    while True:
        answer = files.call_s3("list_objects_v2", **request, **files.req_kw)
        for folder in answer.get("CommonPrefixes", ()):
            yield {"name": f"{bucket}/{folder['Prefix'][:-1]}", "type": "directory"}
        for file in answer.get("Contents", ()):
            details = {"name": f"{bucket}/{file['Key']}", "type": "file", "size": file["Size"]}
            yield {**file, **details}
        if not answer.get("IsTruncated"):
            return
        request["ContinuationToken"] = answer["NextContinuationToken"]


def check_bucket(files: Any, path: str) -> None:
    """Raise an error if the bucket of a path does not exist or may not be read."""
    bucket = path.partition("/")[0]
    try:
        if _is_google(files):
            # The roles for Google's objects do not permit to describe their bucket.
            files.ls(bucket, max_results=1)
        else:
            files.info(bucket)
    except FileNotFoundError as error:
        what = f"no bucket {bucket!r}. Create it, or check its name and the endpoint"
        raise FileNotFoundError(what) from error
    except Exception:
        if "az" not in files.protocol:
            raise
        # A signature (SAS) for one container of Azure does not cover its properties.
        files.exists(path)


def abort_uploads(files: Any, path: str, names: Collection[str]) -> None:
    """End the uploads in parts that were begun and not completed, and remove their parts.

    Only S3 keeps such parts until someone removes them. Other stores remove them after a week.

    Args:
        files: The file system.
        path: The path of a folder.
        names: Files and folders in it. All other uploads continue.
    """
    if not _is_s3(files):
        return
    bucket, key, _ = files.split_path(path.rstrip("/"))
    start = f"{key}/" if key else ""
    request = {"Bucket": bucket, "Prefix": start}
    while True:
        answer = files.call_s3("list_multipart_uploads", **request, **files.req_kw)
        for upload in answer.get("Uploads", ()):
            if upload["Key"].removeprefix(start).partition("/")[0] in names:
                ended = {"Bucket": bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
                files.call_s3("abort_multipart_upload", **ended, **files.req_kw)
        if not answer.get("IsTruncated"):
            return
        request["KeyMarker"] = answer["NextKeyMarker"]
        request["UploadIdMarker"] = answer["NextUploadIdMarker"]


def _is_s3(files: Any) -> bool:
    return "s3" in files.protocol


def _is_google(files: Any) -> bool:
    return "gs" in files.protocol
