"""Reads files from packs."""

import os
from collections import OrderedDict

from batchmill.storage import is_url, open_store
from batchmill.storage.addresses import Address
from batchmill.storage.beneath import open_file

# A file of an open pack is read with one system call.
_MOST_OPEN = 64


class PackReader:
    """Reads files from the packs of a dataset. It keeps the last packs open.

    Args:
        dataset: The dataset's path or URL.
    """

    def __init__(self, dataset: str) -> None:
        self._dataset = dataset
        self._store = open_store(dataset)
        self._open: OrderedDict[str, int] = OrderedDict()

    def read(self, place: Address) -> bytes:
        """Return the content of a file. Raises StoreError."""
        if not is_url(self._dataset):
            try:
                content = os.pread(self._descriptor(place.pack), place.size, place.offset)
                if len(content) == place.size:
                    return content
            except OSError:
                pass  # The pack was written again, or the next line reports the error.
        return self._store.packed.read(place)

    def _descriptor(self, pack: str) -> int:
        descriptor = self._open.pop(pack, None)
        if descriptor is None:
            if len(self._open) == _MOST_OPEN:
                os.close(self._open.popitem(last=False)[1])
            descriptor = open_file(self._dataset, pack)
        self._open[pack] = descriptor
        return descriptor

    def __reduce__(self) -> tuple[type["PackReader"], tuple[str]]:
        return PackReader, (self._dataset,)

    def __del__(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
