"""The ring buffer delivers complete records from one process to another, in order."""

import os

import pytest

from batchmill.runs.workers.ring_buffer import RingBuffer


@pytest.fixture
def journal():
    made = RingBuffer(size=4096)
    yield made
    made.close()


def test_records_arrive_in_order_over_many_rounds_of_the_ring(journal):
    for number in range(2000):
        records = [f"{number}-{i}".encode() * (i + 1) for i in range(number % 7)]
        for record in records:
            journal.write(record)
        assert journal.read() == records
    assert journal.read() == []


@pytest.mark.parametrize("size", [0, 1, 1015, 1016, 1017, 4096, 100_000])
def test_a_record_may_be_larger_than_the_ring(journal, size):
    records = [os.urandom(size) for _ in range(3)]
    writer = os.fork()
    if writer == 0:
        for record in records:
            journal.write(record)
        os._exit(0)
    read = []
    while len(read) < len(records):
        read += journal.read()
    assert os.waitpid(writer, 0)[1] == 0
    assert read == records


def test_records_of_a_killed_writer_can_be_read(journal):
    writer = os.fork()
    if writer == 0:
        journal.write(b"the last word")
        os.kill(os.getpid(), 9)
    os.waitpid(writer, 0)
    assert journal.read() == [b"the last word"]


def test_an_incomplete_record_is_not_read(journal):
    journal.write(b"whole")
    journal.write(b"later")
    # Another CPU core may see the new counter before the last bytes.
    journal._ring[20] ^= 1
    assert journal.read() == [b"whole"]
    assert journal.read() == []
    journal._ring[20] ^= 1
    assert journal.read() == [b"later"]
