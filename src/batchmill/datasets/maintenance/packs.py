"""Packs that nothing names are removed. Packs of which little is still used are written again."""

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping

from batchmill.core.layout import PACKS
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.parts import read_parts
from batchmill.core.ledger.recorded_outputs import file_names
from batchmill.core.storage import Store, in_threads
from batchmill.core.storage.addresses import (
    BLOCK,
    Address,
    encode_moved,
    list_of_moved,
    parse_address,
)
from batchmill.core.storage.pack_writer import encode_member

# A pack is written again if less than this share of its bytes is used.
_LEAST_USED = 0.5
# The packs that are written again are joined up to about this size in bytes.
_JOINED_BYTES = 256 * 2**20


def cut_packs(ledger: Ledger) -> None:
    """Cut each pack after its last recorded file. A tar program rejects an incomplete file."""
    ends: dict[str, int] = {}
    for records in read_parts(ledger.unchanging, ledger.part_names(), ["outputs"]):
        for place in filter(None, map(parse_address, file_names(records).to_pylist())):
            ends[place.pack] = max(ends.get(place.pack, 0), place.end)
    for pack, end in ends.items():
        ledger.store.cut(pack, end)


def unused_packs(store: Store, named: Iterable[str]) -> list[str]:
    """Return the files in the folder of packs that no output needs.

    Args:
        store: The dataset's store.
        named: The names of all outputs that stay.
    """
    present = _present(store)
    lengths: dict[str, int | None] = {}
    needed = set()
    for place in {parse_address(name) for name in named} if present else ():
        if place and place.pack in present:
            needed.add(place.pack)
        elif place and (now := store.packed.find(place, lengths)):
            needed |= {list_of_moved(place.pack), now.pack}
    return sorted(present - needed)


def rewrite_packs(store: Store, paths: Mapping[str, str]) -> None:
    """Write files again that are in packs of which less than half is used.

    First the new packs are written, then the lists that lead to them. The old packs are removed
    last. After a kill in between, `unused_packs` has the new packs, and the old ones are complete.

    Args:
        store: The dataset's store.
        paths: The path of each output in a pack that stays, by its address.
    """
    places = {place: path for name, path in paths.items() if (place := parse_address(name))}
    present = _present(store)
    lengths: dict[str, int | None] = {}
    now = {p: p if p.pack in present else store.packed.find(p, lengths) for p in places}
    used: Counter[str] = Counter()
    for at in now.values():
        if at:
            used[at.pack] += at.end - at.offset + BLOCK
    packs = sorted(used)
    sizes = zip(packs, store.sizes(packs), strict=True)
    sparse = {pack for pack, size in sizes if used[pack] < _LEAST_USED * (size or 0)}
    moving = {p: at for p, at in now.items() if at and at.pack in sparse}
    new = _copy_members(store, {at: places[p] for p, at in moving.items()})
    moved: dict[str, dict[int, Address]] = {p.pack: {} for p in moving}
    for p, at in now.items():
        if at and p.pack in moved:
            moved[p.pack][p.offset] = new.get(at, at)
    for pack in sorted(moved):
        store.write(list_of_moved(pack), encode_moved(moved[pack]))
    in_threads(store.delete, sorted(sparse), store.threads)


def _copy_members(store: Store, paths: Mapping[Address, str]) -> dict[Address, Address]:
    """Copy files into new packs. Return where they are now."""
    new: dict[Address, Address] = {}
    data = bytearray()
    name = _new_name()
    for place in sorted(paths):
        header, member = encode_member(paths[place], store.packed.read(place))
        new[place] = Address(name, len(data) + header, place.size)
        data += member
        if len(data) >= _JOINED_BYTES:
            store.write(name, bytes(data))
            data, name = bytearray(), _new_name()
    if data:
        store.write(name, bytes(data))
    return new


def _new_name() -> str:
    return f"{PACKS}/joined-{uuid.uuid4().hex[:12]}.tar"


def _present(store: Store) -> set[str]:
    return {f"{PACKS}/{name}" for name in store.names(PACKS)}
