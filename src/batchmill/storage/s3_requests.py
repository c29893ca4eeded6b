"""Direct requests to S3, where the functions of s3fs send several.

Each function is called with the file system of s3fs and a path in it. It raises the errors of s3fs.
"""

import errno
from collections.abc import Collection, Iterator
from io import BytesIO
from typing import Any

# The first request for a file fetches up to this number of bytes: the whole of a small file.
_FIRST_BYTES = 2**20
# A larger upload waits until the server accepts it.
_SENT_AT_ONCE_BYTES = 2**20


def is_s3(files: Any) -> bool:
    """Return whether a file system is that of s3fs."""
    return "s3" in files.protocol


def send_at_once(files: Any) -> None:
    """Let small uploads take one round trip. May be called again.

    botocore waits before each upload until the server says that it may continue.
    """
    files.s3.meta.events.register_last(
        "before-call.s3", _without_question, unique_id="batchmill-send-at-once"
    )


def _without_question(params: dict[str, Any], **_: Any) -> None:
    body = params.get("body")
    if isinstance(body, BytesIO) and body.getbuffer().nbytes < _SENT_AT_ONCE_BYTES:
        params["headers"].pop("Expect", None)


def look_up(files: Any, path: str) -> dict[str, Any]:
    """Return the description of a file. `info` would also search for a folder with this name."""
    bucket, key, version = files.split_path(path)
    if not key:
        found: dict[str, Any] = files.info(path)
        return found
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
    """Return the content of a small file, with one request. Empty if the file is large or empty."""
    try:
        data: bytes = files.cat_file(path, start=0, end=_FIRST_BYTES)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return b""  # S3 rejects the range if the file is empty.
        raise
    return data if len(data) < _FIRST_BYTES else b""


def list_entries(files: Any, path: str, delimiter: str) -> Iterator[dict[str, Any]]:
    """Yield the entries below a folder. A thousand are one request."""
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


def abort_uploads(files: Any, path: str, names: Collection[str]) -> None:
    """End the uploads in parts that were begun and not completed, and remove their parts.

    Args:
        files: The file system.
        path: The path of a folder.
        names: Files and folders in it. All other uploads continue.
    """
    bucket, key, _ = files.split_path(path.rstrip("/"))
    start = f"{key}/" if key else ""
    request = {"Bucket": bucket, "Prefix": start}
    while True:
        answer = files.call_s3("list_multipart_uploads", **request, **files.req_kw)
        for upload in answer.get("Uploads", ()):
            if upload["Key"].removeprefix(start).partition("/")[0] in names:
                one = {"Bucket": bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
                files.call_s3("abort_multipart_upload", **one, **files.req_kw)
        if not answer.get("IsTruncated"):
            return
        request["KeyMarker"] = answer["NextKeyMarker"]
        request["UploadIdMarker"] = answer["NextUploadIdMarker"]
