"""A file that is read in ranges equals the whole file, and small reads are few requests."""

import io
import os
import random
import zipfile

import pytest

from batchmill import StoreError
from batchmill.core.storage.ranges import HEAD_BYTES, RangeReader

MIB = 2**20


class Object:
    """An object whose requests are recorded, as a start and a number of bytes."""

    def __init__(self, data):
        self.data, self.requests = data, []

    def open(self):
        raw = RangeReader("a.bin", len(self.data), self.data[:HEAD_BYTES], self._read)
        return io.BufferedReader(raw)

    def _read(self, start, stop):
        self.requests.append((start, stop - start))
        return self.data[start:stop]


def test_any_reads_return_the_same_bytes_as_a_plain_file():
    data = os.urandom(MIB)
    choose = random.Random(1)
    for _ in range(20):
        file, plain = Object(data).open(), io.BytesIO(data)
        for _ in range(30):
            at, whence = choose.choice(
                [(choose.randrange(MIB), 0), (-choose.randrange(MIB), 2), (0, 1), (MIB + 9, 0)]
            )
            assert file.seek(at, whence) == plain.seek(at, whence)
            size = choose.choice([0, 1, 500, 9_000, 300_000, -1])
            assert file.read(size) == plain.read(size)
            assert file.tell() == plain.tell()


def test_the_header_needs_no_further_request():
    found = Object(os.urandom(MIB))
    with found.open() as file:
        assert file.name == "a.bin"
        assert file.read(44) == found.data[:44]
        file.seek(HEAD_BYTES - 10)
        assert file.read(10) == found.data[HEAD_BYTES - 10 : HEAD_BYTES]
    assert not found.requests


def test_small_reads_from_the_beginning_to_the_end_are_few_requests():
    found = Object(os.urandom(64 * MIB))
    file = found.open()
    read = b"".join(iter(lambda: file.read(4_000), b""))
    assert read == found.data
    assert len(found.requests) <= 14


def test_a_large_read_and_the_rest_are_one_request_each():
    found = Object(os.urandom(20 * MIB))
    file = found.open()
    file.seek(MIB)
    assert file.read(9 * MIB) == found.data[MIB : 10 * MIB]
    assert file.read() == found.data[10 * MIB :]
    assert len(found.requests) == 2


def test_an_index_at_the_end_is_one_request():
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for number in range(40):
            archive.writestr(f"{number}.bin", os.urandom(100_000))
    found = Object(content.getvalue())
    assert len(zipfile.ZipFile(found.open()).namelist()) == 40
    assert len(found.requests) == 1


def test_an_error_is_kept():
    """A library may replace the error by one of its own."""

    def fail(start, stop):
        raise StoreError("s3://a/b", "the server is down.", passing=True)

    raw = RangeReader("b", MIB, b"head", fail)
    raw.seek(9)
    with pytest.raises(StoreError, match="is down"):
        raw.read(1)
    assert raw.fault.passing


def test_a_part_that_is_too_short_is_an_error():
    raw = RangeReader("b", MIB, b"head", lambda start, stop: b"short")
    raw.seek(9)
    with pytest.raises(StoreError, match="5 of 131,072 bytes arrived"):
        raw.read(1)


@pytest.mark.parametrize("wrong", [lambda file: file.seek(-1), lambda file: file.write(b"a")])
def test_it_is_read_only_and_begins_at_zero(wrong):
    with pytest.raises((ValueError, io.UnsupportedOperation)):
        wrong(Object(b"content").open())
