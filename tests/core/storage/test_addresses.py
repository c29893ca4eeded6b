"""A file in a pack stays readable after its pack was written again without the unused files."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from batchmill import StoreError
from batchmill.core.storage import LocalStore
from batchmill.core.storage.addresses import Address, encode_moved, list_of_moved
from batchmill.core.storage.pack_writer import encode_member

OLD, NEW, NEWEST = (f"packs/{name}.tar" for name in ("old", "new", "newest"))


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path)


def pack(store, name, *contents):
    """Write a pack. Return the place of each file in it."""
    data, places = b"", []
    for content in contents:
        header, member = encode_member("x", content)
        places.append(Address(name, len(data) + header, len(content)))
        data += member
    store.write(name, data)
    return places


def test_a_file_is_found_after_each_rewrite_of_its_pack(store):
    first, unused, last = old = pack(store, OLD, b"a", b"unused", b"content")
    reader = LocalStore(store.root)
    for before, name in ((OLD, NEW), (NEW, NEWEST)):
        now_last, now_first = pack(store, name, b"content", b"a")
        moved = encode_moved({first.offset: now_first, last.offset: now_last})
        store.write(list_of_moved(OLD), moved)
        store.delete(before)
        # The reader has already read the list of the first rewrite.
        assert reader.packed.sizes(old) == [1, None, 7]
        assert [reader.read(place.named("x")) for place in (first, last)] == [b"a", b"content"]
        assert LocalStore(store.root).packed.read(last) == b"content"
        with pytest.raises(StoreError, match=OLD):
            reader.packed.read(unused)
    store.delete(NEWEST)
    assert reader.packed.sizes(old) == [None] * 3
    with pytest.raises(StoreError, match=OLD):
        LocalStore(store.root).packed.read(last)


@pytest.fixture
def moved_twice(store):
    """A reader that knows the first place of two moved files, and their addresses."""
    old = pack(store, OLD, b"a", b"content")
    reader = LocalStore(store.root)
    for before, name in ((OLD, NEW), (NEW, NEWEST)):
        now = pack(store, name, b"a", b"content")
        moved = dict(zip((place.offset for place in old), now, strict=True))
        store.write(list_of_moved(OLD), encode_moved(moved))
        store.delete(before)
        assert name == NEWEST or reader.packed.sizes(old) == [1, 7]
    return reader, old


def test_two_threads_find_a_file_that_was_moved_twice(store, moved_twice, monkeypatch):
    reader, (_, place) = moved_twice
    both = threading.Barrier(2)

    def together(function, argument):
        both.wait(10)
        return function(argument)

    for name in ("file_sizes", "read"):
        monkeypatch.setattr(reader, name, partial(together, getattr(reader, name)))
    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(reader.packed.read, [place] * 2)] == [b"content"] * 2


def test_the_size_of_a_moved_pack_is_requested_once(store, moved_twice, monkeypatch):
    _, old = moved_twice
    reader, requested = LocalStore(store.root), []
    file_sizes = reader.file_sizes
    monkeypatch.setattr(
        reader, "file_sizes", lambda names: requested.extend(names) or file_sizes(names)
    )
    assert reader.packed.sizes(old * 50) == [1, 7] * 50
    assert requested == [OLD, NEWEST]


def test_a_file_at_the_end_of_a_cut_pack_does_not_count_as_complete(store):
    places = pack(store, OLD, b"a", b"content")
    whole = store.read(OLD)
    assert store.packed.sizes(places) == [1, 7]
    for size, sizes in ((len(whole) - 1, [1, None]), (places[1].offset + 6, [1, None])):
        store.write(OLD, whole[:size])
        assert store.packed.sizes(places) == sizes
    assert store.packed.read(places[0]) == b"a"
    with pytest.raises(StoreError, match="shorter than the ledger says"):
        store.packed.read(places[1])


@pytest.mark.parametrize("content", [b"", b"[]", b'{"512": 3}', b'{"512": ["x"]}', b"\xff", b"{"])
def test_files_count_as_missing_if_the_list_of_moved_files_is_damaged(store, content):
    place = Address(OLD, 512, 3)
    store.write(list_of_moved(OLD), content)
    assert store.packed.sizes([place]) == [None]
    with pytest.raises(StoreError, match=OLD):
        store.packed.read(place)
