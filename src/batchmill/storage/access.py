"""Credentials and settings for single stores, which a process has for as long as it needs them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Access:
    """How files in the bucket of a URL are opened: `options` are those of fsspec's file system.

    They may be secret, and do not show.
    """

    url: str
    options: Mapping[str, Any] = field(repr=False)


# Of the process, not of a thread or a context: whoever reads and writes does so in several threads.
_granted: list[Access] = []


@contextmanager
def access_to(stores: Sequence[Access]) -> Iterator[None]:
    """Let this process, and those that it forks, open stores in their own way within the block."""
    held = [replace(store) for store in stores]
    _granted.extend(held)
    try:
        yield
    finally:
        # Equal ones may be another's, who goes on.
        _granted[:] = [store for store in _granted if not any(store is one for one in held)]


def options_for(url: str) -> dict[str, Any]:
    """Return the options for a URL.

    They are those of the store that it is in, the innermost if several, else of one in its bucket;
    of equals, the latest.
    """
    latest = list(reversed(_granted))
    inside = [store for store in latest if _is_below(url, store.url)]
    if inside:
        return dict(max(inside, key=lambda store: len(store.url)).options)
    beside = [store for store in latest if _is_below(url, _bucket_of(store.url))]
    return dict(beside[0].options) if beside else {}


def _is_below(url: str, above: str) -> bool:
    return f"{url}/".startswith(f"{above.rstrip('/')}/")


def _bucket_of(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def granted_options() -> list[dict[str, Any]]:
    """Return the options of all stores that this process can open in their own way."""
    return [dict(store.options) for store in _granted]
