"""Test the step of the tutorial."""

import pytest

from batchmill.steps.words import split


@pytest.mark.parametrize(
    ("word", "options", "parts"),
    [
        ("simple", {"num_chars": 3, "overlap": 2}, ["sim", "imp", "mpl", "ple"]),
        ("simple", {}, ["si", "im", "mp", "pl", "le"]),
        ("simple", {"num_chars": 3, "overlap": 0}, ["sim", "ple"]),
        ("simple", {"num_chars": 4, "overlap": 1}, ["simp"]),
        ("ab", {"num_chars": 3}, []),
        ("", {}, []),
        ("Größe\n", {"num_chars": 5}, ["Größe"]),
    ],
)
def test_parts_are_complete_and_overlap(tmp_path, word, options, parts):
    source = tmp_path / "word.txt"
    source.write_text(word, encoding="utf-8")
    rows = list(split(source, **options))
    assert [row["part"] for row in rows] == parts
    assert [row["index"] for row in rows] == list(range(len(parts)))


def test_an_overlap_of_the_whole_part_is_rejected(tmp_path):
    with pytest.raises(ValueError, match="must be below num_chars"):
        list(split(tmp_path, num_chars=2, overlap=2))
