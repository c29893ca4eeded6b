"""The channel between one worker and its watcher."""

import os

from batchmill.execution.isolation.worker_channel import LOG_TAIL_BYTES, WorkerChannel


def test_a_log_that_is_too_long_keeps_its_tail():
    channel = WorkerChannel()
    try:
        for number in range(40):
            os.write(channel.log, f"{number:03d} ".encode() * (64 * 2**10))
        os.write(channel.log, b"the last line\n")
        channel.bound_log()
        assert os.fstat(channel.log).st_size == LOG_TAIL_BYTES
        assert channel.log_tail().endswith("039 the last line\n")
        os.write(channel.log, b"one more\n")
        assert channel.log_tail().endswith("the last line\none more\n")
    finally:
        channel.close()
