"""Files are read from packs by several threads, with few open packs."""

import sys
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from batchmill.core.storage.addresses import Address
from batchmill.datasets.reading.open_file import PackReader

PACKS = 200
OPEN = 64


@pytest.fixture
def hurried():
    """Let threads take turns often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_read_the_pack_that_they_name(tmp_path, hurried):
    (tmp_path / "packs").mkdir()
    contents = {f"packs/{number:06d}-0.tar": f"{number:08d}".encode() for number in range(PACKS)}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    reader = PackReader(str(tmp_path))
    before = psutil.Process().num_fds()
    names = [*contents] * 50

    def is_right(name):
        return reader.read(Address(name, 0, 8)) == contents[name]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(is_right, names))
    assert psutil.Process().num_fds() - before <= OPEN
