"""Credentials and settings for single stores. A process holds them while it needs them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Access:
    """The credentials and settings for one store.

    Attributes:
        url: The URL of the store.
        options: The options of fsspec's file system. They may be secret, so `repr` omits them.
    """

    url: str
    options: Mapping[str, Any] = field(repr=False)


# All threads share this list, because stores are read and written in several threads.
_granted: list[Access] = []


@contextmanager
def access_to(stores: Sequence[Access]) -> Iterator[None]:
    """Let this process and its forked children use the options of `stores` during the block."""
    held = [replace(store) for store in stores]
    _granted.extend(held)
    try:
        yield
    finally:
        # Compare by identity, because another caller may still use an equal store.
        _granted[:] = [store for store in _granted if not any(store is copy for copy in held)]


def options_for(url: str) -> dict[str, Any]:
    """Return the options for a URL; empty if no store matches.

    The innermost store that contains the URL matches first, then a store in the same bucket. If
    several stores match equally, the latest one is used.
    """
    beside = [store for store in reversed(_granted) if _is_below(url, bucket_of(store.url))]

    def depth(store: Access) -> int:
        return len(store.url) if _is_below(url, store.url) else 0

    return dict(max(beside, key=depth).options) if beside else {}


def _is_below(url: str, above: str) -> bool:
    return f"{url}/".startswith(f"{above.rstrip('/')}/")


def bucket_of(url: str) -> str:
    """Return the URL of the bucket or server that a URL is in."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def granted() -> list[Access]:
    """Return the stores for which this process has options now."""
    return list(_granted)
