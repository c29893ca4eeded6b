"""The file system of a URL. Every error is a StoreError with the URL and without secrets."""

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from batchmill.core.security.allowlist import INPUTS, listed_in
from batchmill.core.security.credentials import bucket_of, options_for
from batchmill.core.security.redaction import without_secrets
from batchmill.core.storage.provider_requests import GOOGLE_SCHEMES, open_google
from batchmill.core.urls import hide_secrets, is_web
from batchmill.errors import StoreError
from batchmill.version import install_command

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
_EXTRAS |= dict.fromkeys(GOOGLE_SCHEMES, "google")


@contextmanager
def connected(url: str) -> Iterator[tuple[Any, str]]:
    """Yield the file system of a URL and the path in it. Convert errors in the block to StoreError.

    Raises:
        StoreError: As `converting_errors` raises it.
    """
    with converting_errors(url):
        files, path = _locate(url)
        try:
            yield files, path
        except Exception as error:
            if has_expired(error):
                type(files).clear_instance_cache()  # The next call reads the credentials again.
            raise


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


def _locate(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, which fsspec caches, and the path in it.

    fsspec parses only the scheme and the host, because a key may contain any characters.
    """
    options = {"use_listings_cache": False} | options_for(url)
    if is_web(url) and listed_in(INPUTS) is not None:
        from batchmill.core.security.web_client import confined_client

        options["get_client"] = confined_client
    if url.partition("://")[0] in GOOGLE_SCHEMES:
        files = open_google(options)
    else:
        import fsspec  # It imports much, and a run over local files does not need it.

        files, _ = fsspec.core.url_to_fs(bucket_of(url), **options)
    return files, files._strip_protocol(url)


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
