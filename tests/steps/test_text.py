"""Test cutting texts into chunks: no text is lost or changed, and bad files are rejected."""

import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from harness.live import STEP_MODULES
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batchmill import OptionError, StepError
from batchmill.core.user_step.load import load_step
from batchmill.steps.text import chunk

HERE = str(STEP_MODULES)
TOKENIZERS = "tokenizers_under_test"

# Letters of several bytes or code points, all kinds of line ends, and white space.
TEXTS = st.text(
    st.sampled_from("aB3 \t\n\r\v\u2028\u00a0é\u0301ß漢👩\u200d.,-_'\ufeff"), max_size=60
)


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.fixture(autouse=True)
def _tokenizers_can_be_imported(monkeypatch):
    monkeypatch.syspath_prepend(HERE)


def chunks(folder, content, **options):
    """Cut a text into chunks, and return their rows and texts."""
    source = Path(folder, "a.txt")
    source.write_bytes(content if isinstance(content, bytes) else content.encode())
    rows = list(chunk(source, Path(folder), **options))
    return rows, [Path(folder, row["output"]).read_bytes().decode() for row in rows]


@pytest.mark.parametrize(
    ("text", "options", "parts"),
    [
        ("abcdefghij", {"size": 4}, ["abcd", "efgh", "ij"]),
        ("abcdefghij", {"size": 4, "overlap": 1}, ["abcd", "defg", "ghij"]),
        ("abc", {"size": 4}, ["abc"]),
        ("", {"size": 4}, []),
        ("a\r\nb\rc\n", {"size": 3}, ["a\r\n", "b\rc", "\n"]),
        (" one  two\rthree\n", {"size": 2, "unit": "words"}, [" one  two\r", "three\n"]),
        ("a b c d", {"size": 3, "overlap": 2, "unit": "words"}, ["a b c ", "b c d"]),
        (" \n", {"size": 2, "unit": "words"}, []),
        ("", {"size": 2, "unit": "words"}, []),
        ("漢字 👩‍👧 é", {"size": 1, "unit": "words"}, ["漢字 ", "👩‍👧 ", "é"]),
        ("e\u0301", {"size": 1}, ["e", "\u0301"]),
    ],
)
def test_chunks(out, text, options, parts):
    assert chunks(out, text, **options)[1] == parts


def test_rows_describe_the_source_of_a_chunk(out):
    rows, _ = chunks(out, "ein Wort, größer", size=2, unit="words", overlap=1)
    assert rows == [
        {
            "output": "0000.txt",
            "source": "a.txt",
            "chunk": 0,
            "start": 0,
            "end": 10,
            "characters": 10,
            "tokens": None,
        },
        {
            "output": "0001.txt",
            "source": "a.txt",
            "chunk": 1,
            "start": 4,
            "end": 16,
            "characters": 12,
            "tokens": None,
        },
    ]


@settings(max_examples=150, deadline=None)
@given(
    text=TEXTS,
    size=st.integers(1, 9),
    overlap=st.integers(0, 8),
    unit=st.sampled_from(["characters", "words", "pieces", "ids", "silent", "wrapped", "marked"]),
)
@example(text="\ufeffa", size=1, overlap=0, unit="characters")
@example(text="\ufffd a\ufffd\ufffdb \ufffd", size=2, overlap=0, unit="ids")
@example(text="\ufffd a\ufffd\ufffdb \ufffd", size=2, overlap=1, unit="silent")
def test_chunks_cover_the_text_and_overlaps_are_exact(text, size, overlap, unit):
    overlap = min(overlap, size - 1)
    options = {"unit": unit}
    if unit not in ("characters", "words"):
        options = {"unit": "tokens", "tokenizer": f"{TOKENIZERS}:{unit}"}
    with tempfile.TemporaryDirectory() as folder:
        rows, parts = chunks(folder, text, size=size, overlap=overlap, **options)
    text = text.removeprefix("\ufeff")
    if not rows:
        assert not text or (unit == "words" and text.isspace()) or unit in ("pieces", "marked")
        return
    assert [text[row["start"] : row["end"]] for row in rows] == parts
    assert rows[0]["start"] == 0
    assert rows[-1]["end"] == len(text)
    for before, after in pairwise(rows):
        assert before["start"] <= after["start"] <= before["end"] <= after["end"]
        shared = text[after["start"] : before["end"]]
        if unit == "characters":
            assert len(shared) == overlap
            assert before["characters"] == size
        elif unit == "words":
            assert len(shared.split()) == overlap
            assert len(text[before["start"] : before["end"]].split()) == size
        else:
            assert before["tokens"] == size
    if unit in ("ids", "silent"):  # One token per byte.
        total = sum(row["tokens"] for row in rows) - overlap * (len(rows) - 1)
        assert total == len(text.encode())


def test_several_tokens_may_make_up_one_character(out):
    """A character of four tokens belongs to the chunk with its first token."""
    rows, parts = chunks(out, "a👩b", size=2, unit="tokens", tokenizer=f"{TOKENIZERS}:ids")
    assert parts == ["a👩", "", "b"]
    assert [row["tokens"] for row in rows] == [2, 2, 2]


def test_a_tokenizer_may_leave_out_anything_but_letters(out):
    rows, parts = chunks(
        out, "One, two -- three!", size=2, unit="tokens", tokenizer=f"{TOKENIZERS}:pieces"
    )
    assert parts == ["One, two -- ", "three!"]
    assert [row["tokens"] for row in rows] == [2, 1]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("upper", "One", "returned 'ONE' where the text has 'One' \\(character 0\\)"),
        ("special", "One", r"returned '\[CLS\]' where the text has 'One'"),
        ("first_only", "One two", "ended where the text has ' two' \\(character 3\\)"),
        ("none_at_all", "One", "ended where the text has 'One'"),
        ("numbers", "One", "returned a int: expected text"),
    ],
)
def test_tokens_that_do_not_match_the_text_are_rejected(out, name, text, says):
    with pytest.raises((ValueError, TypeError), match=says):
        chunks(out, text, unit="tokens", tokenizer=f"{TOKENIZERS}:{name}")


def test_tokens_may_be_marked_as_parts_of_a_word(out):
    options = {"unit": "tokens", "tokenizer": f"{TOKENIZERS}:marked"}
    rows, parts = chunks(out, "ab,  cd\nef", size=3, overlap=1, **options)
    assert parts == ["ab,  ", ",  cd\n", "d\nef"]
    assert [row["tokens"] for row in rows] == [3, 3, 3]


def test_unit_and_tokenizer_belong_together(out):
    for options in ({"unit": "tokens"}, {"tokenizer": f"{TOKENIZERS}:pieces"}):
        with pytest.raises(ValueError, match="belong together"):
            chunks(out, "a", **options)


def test_an_overlap_of_the_whole_chunk_is_rejected(out):
    with pytest.raises(ValueError, match="must be below size"):
        chunks(out, "abc", size=2, overlap=2)


# Files


@pytest.mark.parametrize(
    ("content", "says", "replaced", "ignored"),
    [
        ("größer".encode("latin-1"), "can't decode byte 0xf6 in position 2", "gr��er", "grer"),
        ("ab".encode("utf-16"), "it is UTF-16 \\(little-endian\\)", "��a�b�", "ab"),
        (b"\xfe\xff\0a", "it is UTF-16 \\(big-endian\\)", "���a", "a"),
        ("ab".encode("utf-16-le"), "it has a NUL as character 1", "a�b�", "ab"),
        (b"ab\0c", "it has a NUL as character 2", "ab�c", "abc"),
        (b"ab\xe2\x82", "unexpected end of data", "ab�", "ab"),
        (b"\xed\xa0\x80", "invalid continuation byte", "���", ""),
    ],
)
def test_invalid_utf_8_is_handled_as_configured(out, content, says, replaced, ignored):
    with pytest.raises(ValueError, match=says):
        chunks(out, content)
    assert [row["output"] for row in chunks(out, b"a")[0]] == ["0000.txt"]
    assert "".join(chunks(out, content, errors="replace")[1]) == replaced
    assert "".join(chunks(out, content, errors="ignore")[1]) == ignored


def test_a_byte_order_mark_is_not_part_of_the_text(out):
    rows, parts = chunks(out, b"\xef\xbb\xbfab", size=1)
    assert parts == ["a", "b"]
    assert [row["start"] for row in rows] == [0, 1]


@pytest.mark.parametrize("unit", ["characters", "words"])
def test_a_large_file_with_a_single_line(out, unit):
    text = "größer " * 1_500_000
    rows, parts = chunks(out, text, size=400_000, unit=unit)
    assert "".join(parts) == text
    assert len(rows) == (27 if unit == "characters" else 4)


# Parameters


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"size": 0}, "'size' is 0"),
        ({"overlap": -1}, "'overlap' is -1"),
        ({"unit": "lines"}, "'unit' is 'lines'"),
        ({"errors": "guess"}, "'errors' is 'guess'"),
        ({"tokenizer": "words"}, "expected package.module:attribute"),
        ({"tokenizer": "no_such_module:x"}, "no module 'no_such_module' on the import path"),
        ({"tokenizer": f"{TOKENIZERS}:nope"}, "has no 'nope'"),
        ({"tokenizer": f"{TOKENIZERS}:__doc__"}, "is a str: expected a function"),
        ({"tokenizer": "broken_under_test:x"}, "failed with ZeroDivisionError: division by zero"),
    ],
)
def test_parameters_are_checked_before_the_run(tmp_path, monkeypatch, params, says):
    (tmp_path / "broken_under_test.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(StepError) as caught:
        load_step("batchmill.steps.text:chunk", params)
    assert says in str(caught.value)


def test_a_tokenizer_must_be_in_the_allowlist(out, monkeypatch, tmp_path):
    (tmp_path / "forbidden_tokenizer.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("BATCHMILL_ALLOWED_STEPS", f"batchmill.steps,{TOKENIZERS}:ids")
    forbidden = ["forbidden_tokenizer:x", "os:system", f"{TOKENIZERS}:pieces"]
    for tokenizer in forbidden:
        with pytest.raises(OptionError, match="may not be run here"):
            load_step("batchmill.steps.text:chunk", {"tokenizer": tokenizer})
        with pytest.raises(OptionError, match="may not be run here"):
            chunks(out, "a", unit="tokens", tokenizer=tokenizer)
    # An allowed module imports this tokenizer from another module.
    monkeypatch.setenv("BATCHMILL_ALLOWED_STEPS", f"batchmill.steps,{TOKENIZERS}")
    with pytest.raises(OptionError, match="which may not be run here"):
        load_step("batchmill.steps.text:chunk", {"tokenizer": f"{TOKENIZERS}:findall"})
    params = {"unit": "tokens", "tokenizer": f"{TOKENIZERS}:pieces"}
    assert load_step("batchmill.steps.text:chunk", params).params["tokenizer"]


def test_a_changed_tokenizer_changes_the_step(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    identities = set()
    for body in ("text.split()", "list(text)", "list(text)"):
        (tmp_path / "changing_tokenizer.py").write_text(f"def cut(text):\n    return {body}\n")
        step = load_step("batchmill.steps.text:chunk", {"tokenizer": "changing_tokenizer:cut"})
        assert "changing_tokenizer:cut" in step.description["code"]
        identities.add(step.identity)
    assert len(identities) == 2
