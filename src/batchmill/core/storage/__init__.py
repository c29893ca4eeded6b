"""Stores for datasets and inputs: local folders, and all URLs that fsspec can open."""

from batchmill.core.storage.local import LocalStore
from batchmill.core.storage.objects import ObjectStore, ReadOnce
from batchmill.core.storage.store import Store, if_exists, in_threads
from batchmill.core.urls import is_url

__all__ = ["LocalStore", "Store", "if_exists", "in_threads", "is_url", "open_store", "read_once"]


def open_store(place: str) -> Store:
    """Return the store at a path or URL. Nothing is read or written yet."""
    return ObjectStore(place) if is_url(place) else LocalStore(place)


def read_once(store: Store) -> Store:
    """Return a store for files that never change: a file of a bucket is fetched at most once."""
    return ReadOnce(store) if isinstance(store, ObjectStore) else store
