"""The file system behind a URL. Every error is a StoreError that names the URL, and no secret."""

import errno
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import fsspec

from batchmill.errors import StoreError
from batchmill.storage.access import granted_options, options_for
from batchmill.storage.allowed_places import INPUTS, listed_in
from batchmill.storage.urls import hide_secrets, is_web

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
_NO_ACCESS = {"NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError"}
# Of a web server, an error's status speaks of the one file.
_WEB_SERVERS_NO = "ClientResponseError"
_EXTRAS = {"s3": "pip install 'batchmill[s3]'", "s3a": "pip install 'batchmill[s3]'"}
_SECRET_NAME = re.compile(r"secret|token|passw|access_?key|account_?key|_key$|^key$|sas", re.I)
_SHORTEST_SECRET = 6
_NO_SECRETS = ("region_name", "profile", "username", "account_name", "project")


@contextmanager
def connected(url: str) -> Iterator[tuple[Any, str]]:
    """Give the file system of a URL and the path in it; make each error one that a user can read.

    Raises StoreError for whatever goes wrong in the block: botocore's errors, aiohttp's, the
    system's. Its cause is of the same built-in type as the error, and has its text without secrets.
    """
    try:
        yield _locate(url)
    except Exception as error:  # noqa: BLE001  # It is raised again, without its secrets.
        name = type(error).__name__
        # Not the error itself: whoever logs this one, logs what it comes from, too.
        cause = _stand_in(error).with_traceback(error.__traceback__)
        final = isinstance(error, _FINAL) or name in _NO_ACCESS or name == _WEB_SERVERS_NO
        # This is what is left of an answer that the request makes no sense.
        final = final or (isinstance(error, OSError) and error.errno == errno.EINVAL)
        raise StoreError(
            hide_secrets(url),
            _without_secrets(_reason(url, error)),
            passing=not final,
            general=name in _NO_ACCESS,
        ) from cause


def _stand_in(error: Exception) -> Exception:
    """Return an error of the same built-in type, whose text has no secret."""
    kind = next((kind for kind in (*_FINAL, OSError) if isinstance(error, kind)), Exception)
    return kind(_without_secrets(f"{type(error).__name__}: {error}"))


def _locate(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it; cheap, for fsspec keeps the former.

    Of the URL, only scheme and host are left to fsspec to interpret: a key may hold anything.
    """
    scheme, _, rest = url.partition("://")
    host = f"{scheme}://{rest.partition('/')[0]}"
    options = {"use_listings_cache": False} | options_for(url)
    if is_web(url) and listed_in(INPUTS) is not None:
        from batchmill.storage.confined import confined_client

        options["get_client"] = confined_client
    files, _ = fsspec.core.url_to_fs(host, **options)
    return files, files._strip_protocol(url)


def _reason(url: str, error: Exception) -> str:
    scheme = url.partition("://")[0]
    text = str(error).strip().partition("\n")[0][:300]
    if isinstance(error, ImportError):
        extra = _EXTRAS.get(scheme)
        return f"{extra} to open {scheme}:// URLs." if extra else f"{text}."
    if isinstance(error, ValueError) and "rotocol" in text:
        return f"no library knows {scheme}:// URLs. Check the spelling."
    if isinstance(error, PermissionError) or type(error).__name__ in _NO_ACCESS:
        return (
            f"access is refused ({text}). Give yourself the right, or set the store's credentials "
            "in the environment, a profile, or a saved dataset store."
        )
    if isinstance(error, FileNotFoundError):
        return "there is no such file." if text in url else f"{text}."
    if isinstance(error, ValueError):
        return f"{text}."
    return f"{type(error).__name__}: {text}."


def _without_secrets(text: str) -> str:
    """Replace every credential that this process knows, whatever a library has put into a text."""
    # The longest first: one may be a part of another.
    for secret in sorted(set(_secrets()), key=len, reverse=True):
        text = text.replace(secret, "***")
    return hide_secrets(text)


def _secrets() -> Iterator[str]:
    pairs: list[tuple[str, object]] = [*os.environ.items()]
    for options in fsspec.config.conf.values():
        pairs += options.items()
    for name, value in pairs:
        if isinstance(value, str) and len(value) >= _SHORTEST_SECRET and _SECRET_NAME.search(name):
            yield value
    for options in granted_options():
        yield from _texts(options)


def _texts(options: object) -> Iterator[str]:
    """Yield what may be secret of a store's options: all texts but those known to be none."""
    if isinstance(options, str) and len(options) >= _SHORTEST_SECRET:
        yield options
    elif isinstance(options, Mapping):
        for name, value in options.items():
            if name == "endpoint_url":
                yield from _inside_endpoint(str(value))
            elif name not in _NO_SECRETS:
                yield from _texts(value)
    elif isinstance(options, list | tuple):
        for value in options:
            yield from _texts(value)


def _inside_endpoint(url: str) -> Iterator[str]:
    """Yield what may be secret of a server's address: the password, and each part of the path."""
    rest = url.partition("://")[2]
    parts = [rest.rpartition("@")[0].partition(":")[2], *rest.split("/")[1:]]
    yield from (part for part in parts if len(part) >= _SHORTEST_SECRET)
