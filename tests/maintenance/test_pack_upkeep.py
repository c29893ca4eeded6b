"""Packs of which little is used are written again, and each address still leads to its file."""

import pytest

from batchmill.layout import PACKS
from batchmill.maintenance import pack_upkeep
from batchmill.maintenance.pack_upkeep import rewrite_packs, unused_packs
from batchmill.storage import LocalStore
from batchmill.storage.addresses import Address
from batchmill.storage.pack_writer import encode_member


def write_pack(store, name, paths):
    """Write a pack with a file at each path. Return the path of each file by its address."""
    addresses, data = {}, b""
    for path in paths:
        content = path.encode() * 40
        header, member = encode_member(path, content)
        place = Address(name, len(data) + header, len(content))
        addresses[place.named(path)] = path
        data += member
    store.write(name, data)
    return addresses


def test_files_that_stay_where_they_are_keep_their_address(tmp_path, monkeypatch):
    """An old pack was moved to several new ones. Later, only one of these is written again."""
    monkeypatch.setattr(pack_upkeep, "_JOINED_BYTES", 4000)
    store = LocalStore(tmp_path)
    used = write_pack(store, f"{PACKS}/000001-a-0.tar", [f"files/a/{n:02}" for n in range(20)])
    for kept in (9, 7, 6, 5):
        # The first files are in the first new pack. Some of them are no longer used.
        used = dict(list(used.items())[-kept:])
        rewrite_packs(store, used)
        fresh = LocalStore(tmp_path)
        for address, path in used.items():
            assert fresh.read(address) == path.encode() * 40, kept
    assert len(store.names(PACKS)) >= 3


@pytest.mark.parametrize(
    ("kept", "is_rewritten"), [((1, 3, 5, 7), False), ((0, 1, 2), True), ((7,), True)]
)
def test_packs_are_joined_if_less_than_half_of_them_is_used(tmp_path, kept, is_rewritten):
    store, used = LocalStore(tmp_path), {}
    for number in range(2):
        paths = [f"files/{number}{place}/x" for place in range(8)]
        places = list(write_pack(store, f"{PACKS}/{number}.tar", paths).items())
        used |= dict(places[place] for place in kept)
    rewrite_packs(store, used)
    assert all(LocalStore(tmp_path).read(at) == path.encode() * 40 for at, path in used.items())
    names = store.names(PACKS)
    assert (names == ["0.tar", "1.tar"]) != is_rewritten
    assert len(names) == (3 if is_rewritten else 2), "one new pack, and the lists that lead to it"
    assert unused_packs(store, used) == []
    assert unused_packs(store, []) == [f"{PACKS}/{name}" for name in names]
