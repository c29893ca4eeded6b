from pathlib import Path

from counting import count

from batchmill.testing import check_step

WORDS = sorted(Path(__file__).parent.glob("?.txt"))


def test_count():
    rows = check_step(count, WORDS, params={"upper": True})
    assert [row["characters"] for row in rows] == [6, 9, 13, 7]
