"""Reads files from packs."""

import os
from collections import OrderedDict

from batchmill.storage import is_url, open_store
from batchmill.storage.addresses import Address
from batchmill.storage.beneath import open_file

# A file of an open pack is read with one system call.
_MOST_OPEN = 64


class _OpenPack:
    """The descriptor of a pack. It is closed when no thread uses it any more."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


class PackReader:
    """Reads files from the packs of a dataset. It keeps the last packs open.

    Several threads may use it.

    Args:
        dataset: The dataset's path or URL.
    """

    def __init__(self, dataset: str) -> None:
        self._dataset = dataset
        self._store = open_store(dataset)
        self._open: OrderedDict[str, _OpenPack] = OrderedDict()

    def read(self, place: Address) -> bytes:
        """Return the content of a file. Raises StoreError."""
        if not is_url(self._dataset):
            try:
                pack = self._pack(place.pack)
                content = os.pread(pack.descriptor, place.size, place.offset)
                if len(content) == place.size:
                    return content
            except OSError:
                pass  # The pack was written again, or the next line reports the error.
        return self._store.packed.read(place)

    def _pack(self, name: str) -> _OpenPack:
        pack = self._open.pop(name, None) or _OpenPack(open_file(self._dataset, name))
        self._open[name] = pack
        while len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)
        return pack

    def __reduce__(self) -> tuple[type["PackReader"], tuple[str]]:
        return PackReader, (self._dataset,)
