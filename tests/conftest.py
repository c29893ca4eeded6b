"""What tests of every part share."""

from pathlib import Path

import pytest

WORDS = {"a.txt": "simple", "b.txt": "scaleable", "c.txt": "preprocessing", "d.txt": "pytorch"}
ROOT = Path(__file__).parent.parent


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A folder with the tutorial's four words and their manifest."""
    folder = tmp_path / "words"
    folder.mkdir()
    for name, word in WORDS.items():
        (folder / name).write_text(word)
    (folder / "manifest.csv").write_text("input\n" + "".join(f"{name}\n" for name in WORDS))
    return folder
