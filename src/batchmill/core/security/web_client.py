"""A web client that requests allowed URLs only, because a redirect may point to another server."""

from typing import Any

from aiohttp import ClientRequest, ClientSession
from yarl import URL

from batchmill.core.security.allowlist import INPUTS, is_inside, roots_in
from batchmill.core.urls import is_web


class _ConfinedRequest(ClientRequest):
    """A request that raises PermissionError before it is sent if its URL is not allowed.

    aiohttp creates a new request for each redirect, so redirects are checked too.
    """

    def __init__(self, method: str, url: URL, *args: Any, **options: Any) -> None:
        allowed = roots_in(INPUTS) or []
        # yarl writes all URLs in the same form, for example a space as %20.
        if not is_inside(str(url), [str(URL(root)) for root in allowed if is_web(root)]):
            raise PermissionError(f"{url.origin()} is not in {INPUTS}")
        super().__init__(method, url, *args, **options)


async def confined_client(**options: Any) -> ClientSession:
    """Return an aiohttp client for fsspec that requests allowed URLs only."""
    return ClientSession(request_class=_ConfinedRequest, **options)
