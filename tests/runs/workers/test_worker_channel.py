"""The log in a worker's channel is bounded."""

import os
import threading

from batchmill.runs.workers.worker_channel import LOG_TAIL_BYTES, WorkerChannel


def test_a_log_that_is_too_long_keeps_its_tail():
    channel = WorkerChannel()
    try:
        for number in range(40):
            os.write(channel.log, f"{number:03d} ".encode() * (64 * 2**10))
        os.write(channel.log, b"the last line\n")
        channel.bound_log()
        assert os.fstat(channel.log).st_blocks * 512 <= 2 * LOG_TAIL_BYTES
        assert channel.log_tail().endswith("039 the last line\n")
        os.write(channel.log, b"one more\n")
        assert channel.log_tail().endswith("the last line\none more\n")
    finally:
        channel.close()


def test_text_that_is_printed_while_the_log_is_shortened_is_kept():
    channel = WorkerChannel()
    ended = threading.Event()

    def shorten():
        while not ended.is_set():
            channel.bound_log()

    thread = threading.Thread(target=shorten)
    thread.start()
    try:
        for number in range(200):
            os.write(channel.log, b"x" * (9 * 2**20))
            os.write(channel.log, f"line {number}\n".encode())
            assert channel.log_tail().endswith(f"xline {number}\n")
    finally:
        ended.set()
        thread.join()
        channel.close()


def test_the_input_that_blocks_a_worker_is_unknown_when_it_has_ended():
    channel = WorkerChannel(slots=2)
    assert channel.blocker is None
    channel.show(7, slot=1)
    channel.name_blocker(1)
    assert channel.blocker == 7
    channel.leave(1)
    assert channel.blocker is None
    channel.close()
