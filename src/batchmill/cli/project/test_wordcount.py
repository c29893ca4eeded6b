from pathlib import Path

from batchmill.testing import check_step
from wordcount import count

TEXTS = sorted((Path(__file__).parent / "texts").iterdir())


def test_count():
    rows = check_step(count, TEXTS)
    assert {row["input"]: row["words"] for row in rows}["melville.txt"] == 3
