"""Turn errors of files and of libraries for URLs into errors that say what to do."""

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from batchmill.core.security.redaction import without_secrets
from batchmill.core.storage.store import NO_ROOM
from batchmill.core.urls import hide_secrets, is_web
from batchmill.errors import StoreError
from batchmill.version import install_command

# Errors of a busy or remote file system. A retry may succeed.
_PASSING = {errno.EIO, errno.EAGAIN, errno.EBUSY, errno.ESTALE, errno.ETIMEDOUT, errno.EINTR}
# The errors of a full disk.
FULL = {errno.ENOSPC, errno.EDQUOT}
_NO_RIGHT = {errno.EACCES, errno.EPERM, errno.EROFS}
# Errors of libraries that no retry can change.
_FINAL = (
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    NotImplementedError,
    ImportError,
    TypeError,
    ValueError,
)
_NO_ACCESS = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "TokenRetrievalError",
    "CredentialUnavailableError",
    "ClientAuthenticationError",
    "DefaultCredentialsError",
}
# Errors of botocore and aiohttp: no server responds at the address.
_NO_SERVER = {"EndpointConnectionError", "ConnectTimeoutError", "ClientConnectorError"}
_EXPIRED = "ExpiredToken"
# The statuses with which a store rejects the credentials, or an access with them.
_DENIED = (401, 403)
# aiohttp's error for an HTTP error status. It concerns one file, not the whole server.
_WEB_SERVERS_NO = "ClientResponseError"
_EXTRAS = {"s3": "s3", "s3a": "s3", "az": "azure", "abfs": "azure", "abfss": "azure"}
_EXTRAS |= {"gs": "google", "gcs": "google"}


def store_fault(place: str, error: OSError) -> StoreError:
    """Return the error of a store whose file system failed.

    Args:
        place: The path of the file or folder.
        error: The error of the operating system.
    """
    is_link = error.errno == errno.ELOOP
    return StoreError(
        str(error.filename or place) if is_link else place,
        _os_reason(error),
        passing=error.errno in _PASSING,
        general=is_link or error.errno in FULL or error.errno in _NO_RIGHT,
    )


def _os_reason(error: OSError) -> str:
    text = error.strerror or str(error)
    if error.errno == errno.ELOOP:
        return (
            "is a link. A dataset contains no links, because they can lead outside. "
            "Replace the link with a copy of its target."
        )
    if error.errno in FULL:
        return NO_ROOM
    if error.errno in _NO_RIGHT:
        return f"{text}. Change the permissions, or choose another folder."
    return f"{text}."


@contextmanager
def converting_errors(url: str) -> Iterator[None]:
    """Convert errors in the block to StoreError with a URL.

    Raises:
        StoreError: The block raised any error, for example of botocore or aiohttp. The cause has
            the built-in type of that error, and its text without secrets.
    """
    try:
        yield
    except Exception as caught:  # noqa: BLE001  # It is raised as StoreError.
        error = _as_built_in(caught)
        name = type(error).__name__
        # The error itself may contain secrets, and a traceback of StoreError shows its cause.
        cause = _stand_in(error).with_traceback(error.__traceback__)
        final = isinstance(error, _FINAL) or name in _NO_ACCESS or name == _WEB_SERVERS_NO
        final = final or (is_web(url) and name in _NO_SERVER)
        # s3fs raises EINVAL if the server rejected the request as invalid.
        final = final or (isinstance(error, OSError) and error.errno == errno.EINVAL)
        raise StoreError(
            hide_secrets(url),
            without_secrets(_reason(url, error)),
            passing=has_expired(error) or not final,
            general=name in _NO_ACCESS,
        ) from cause


def has_expired(error: Exception) -> bool:
    """Return whether a store rejected credentials because they have expired."""
    # s3fs gives botocore's error as the cause. The text of obstore has the answer in XML.
    response = getattr(error.__cause__, "response", None)
    # Errors of other libraries have other kinds of responses.
    code = response.get("Error", {}).get("Code") if isinstance(response, Mapping) else None
    return bool(code == _EXPIRED or f"<Code>{_EXPIRED}</Code>" in str(error))


def _as_built_in(error: Exception) -> Exception:
    """Return a PermissionError for an error of Azure's or Google's library that says the same."""
    text = str(error)
    # gcsfs raises an HttpError with a code. For 403, it raises an OSError with a path in line one.
    code = "code" if type(error).__name__ == "HttpError" else "status_code"
    forbidden = text.startswith("Forbidden: ")
    # botocore raises it for a name that no bucket can have.
    if type(error).__name__ == "ParamValidationError":
        return FileNotFoundError(text.partition("\n")[2]).with_traceback(error.__traceback__)
    # adlfs raises a ValueError if it finds no credentials.
    if forbidden or getattr(error, code, None) in _DENIED or "with credentials!!" in text:
        text = (text.partition("\n")[2] or text) if forbidden else text
        return PermissionError(text).with_traceback(error.__traceback__)
    return error


def _stand_in(error: Exception) -> Exception:
    """Return an error of the same built-in type, with its text without secrets."""
    if has_expired(error):
        return Exception(type(error).__name__)  # Access to this file is not denied.
    kind = next((kind for kind in (*_FINAL, OSError) if isinstance(error, kind)), Exception)
    return kind(without_secrets(f"{type(error).__name__}: {error}"))


def _reason(url: str, error: Exception) -> str:
    scheme = url.partition("://")[0]
    text = str(error).strip().partition("\n")[0][:300]
    if isinstance(error, ImportError):
        if scheme not in _EXTRAS:
            return f"{text}."
        install = install_command(_EXTRAS[scheme])
        return f"{scheme}:// URLs need another library. Run {install}."
    if isinstance(error, ValueError) and "rotocol" in text:
        return f"no library opens {scheme}:// URLs. Check the spelling."
    if has_expired(error):
        return (
            "the credentials have expired. Renew them, and run the same command again. It resumes "
            "the run."
        )
    if isinstance(error, PermissionError) or type(error).__name__ in _NO_ACCESS:
        return (
            f"access denied ({text}). Get access rights, or set the store's credentials in the "
            "environment, a profile, or a saved dataset store."
        )
    if type(error).__name__ in _NO_SERVER:
        where = ", for example in AWS_ENDPOINT_URL" if scheme.startswith("s3") else ""
        return f"no server responds ({text}). Check the network, and the server's address{where}."
    if isinstance(error, FileNotFoundError):
        return "there is no such file." if text in url else f"{text}."
    if isinstance(error, ValueError):
        return f"{text}."
    return f"{type(error).__name__}: {text}."
