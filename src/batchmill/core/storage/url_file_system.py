"""The file system of a URL. Every error is a StoreError with the URL and without secrets."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from batchmill.core.security.allowlist import INPUTS, listed_in
from batchmill.core.security.credentials import bucket_of, options_for
from batchmill.core.storage.provider_requests import GOOGLE_SCHEMES, open_google
from batchmill.core.storage.store_errors import converting_errors, has_expired
from batchmill.core.urls import is_web


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
