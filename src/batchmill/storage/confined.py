"""Web servers, asked only for what may be read here: a redirect may lead elsewhere."""

from typing import Any

from aiohttp import ClientRequest, ClientSession
from yarl import URL

from batchmill.storage.allowed_places import INPUTS, is_inside, roots_in
from batchmill.storage.urls import is_web


class _ConfinedRequest(ClientRequest):
    """A request; each redirect makes another one. Raises PermissionError before it is sent."""

    def __init__(self, method: str, url: URL, *args: Any, **options: Any) -> None:
        allowed = roots_in(INPUTS) or []
        # In one way of writing: with %20 or a space, with or without the usual port.
        if not is_inside(str(url), [str(URL(root)) for root in allowed if is_web(root)]):
            raise PermissionError(f"it leads to {url.origin()}, not to what {INPUTS} lists")
        super().__init__(method, url, *args, **options)


async def confined_client(**options: Any) -> ClientSession:
    """Return a client for fsspec that asks only for what may be read here."""
    return ClientSession(request_class=_ConfinedRequest, **options)
