"""Packs of which little is used are written again, and each address still leads to its file."""

from batchmill.layout import PACKS
from batchmill.maintenance import pack_upkeep
from batchmill.maintenance.pack_upkeep import rewrite_packs
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
