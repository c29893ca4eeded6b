"""What one process writes to a journal, another reads: all of it, in order, and no half of it."""

import os

import pytest

from batchmill.execution.isolation.ring_buffer import RingBuffer


@pytest.fixture
def journal():
    made = RingBuffer(size=4096)
    yield made
    made.close()


def test_records_come_out_in_order_over_many_rounds_of_the_ring(journal):
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


def test_what_a_killed_writer_has_written_is_there(journal):
    writer = os.fork()
    if writer == 0:
        journal.write(b"the last word")
        os.kill(os.getpid(), 9)
    os.waitpid(writer, 0)
    assert journal.read() == [b"the last word"]


def test_a_record_that_is_not_all_there_yet_is_not_read(journal):
    journal.write(b"whole")
    journal.write(b"later")
    # As another processor might see it: the counter is here, the last bytes are not.
    journal._ring[20] ^= 1
    assert journal.read() == [b"whole"]
    assert journal.read() == []
    journal._ring[20] ^= 1
    assert journal.read() == [b"later"]
