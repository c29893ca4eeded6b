"""The prose check finds rejected words in each kind of text, and ignores code."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONG = " ".join(["word"] * 31) + "."


@pytest.fixture(scope="module")
def prose():
    spec = spec_from_file_location("prose", ROOT / "docs" / "prose.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def faults(prose, tmp_path):
    """Return the lines and reasons of the faults of a text, which is written to a file."""

    def check(text, name="page.md"):
        path = tmp_path / name
        path.write_text(text)
        return [(fault.line, fault.reason) for fault in prose.check(path)]

    return check


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("page.md", "# Title\n\nA good sentence.\nRead it anew.\n", 4),
        ("page.md", "- one\n- two\n- read it anew\n", 3),
        ("page.md", "| a | b |\n|---|---|\n| c | read it anew |\n", 3),
        ("page.md", "```sh\nls\n```\nRead it anew.\n", 4),
        (
            "module.py",
            '"""Module."""\n\n\ndef f():\n    """Read.\n\n    Read it anew.\n    """\n',
            7,
        ),
        ("module.py", '"""\nRead it anew.\n"""\n', 2),
        ("module.py", "a = 1\n# A good sentence.\n# Read it anew.\n", 3),
        ("module.py", "a = 1  # Read it anew.\n", 1),
        ("module.py", "a = 1  # A number\n# Read it anew.\n", 2),
        ("module.py", 'a = 1\nraise ValueError("The file is read anew.")\n', 2),
        ("module.py", 'a = 1\nraise ValueError(f"{a}: the file is read anew.")\n', 2),
        ("module.py", 'a = 1\nprint("First line here.\\nThe file is read anew.")\n', 2),
        ("module.py", "\n\ndef test_a_file_is_read_anew():\n    pass\n", 3),
    ],
)
def test_a_rejected_word_is_reported_with_its_line(faults, name, text, line):
    assert faults(text, name) == [(line, "'anew': again")]


@pytest.mark.parametrize(
    ("sentence", "reason"),
    [
        ("What comes late is ignored.", "'What': start with the subject"),
        ("Whoever reads it waits.", "'Whoever': name the thing"),
        ("Of two files, one is read.", "'Of two': start with the subject"),
        ("Wait, for it is late.", "'for it': because, since"),
        ("The sentence ends. `run` stands still.", "'stands still': is"),
        (LONG, "31 words: at most 30; make two sentences"),
    ],
)
def test_a_rejected_sentence_is_reported_with_its_reason(faults, sentence, reason):
    assert (1, reason) in faults(sentence)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("page.md", "Read it again.\n"),
        ("page.md", "What is a step?\n"),
        ("page.md", LONG.removeprefix("word ")),
        ("page.md", f"{LONG.removeprefix('word ')} `run` starts the next sentence.\n"),
        ("page.md", "The command `anew` and ``tell anew`` are code.\n"),
        ("page.md", "Text:\n\n```sh\nanew what\n```\n"),
        ("page.md", "1. Text:\n\n   ```python\n   tell = anew\n   ```\n"),
        ("page.md", "See [the page](anew.md).\n"),
        ("page.md", "<!-- anew -->\n"),
        ("module.py", 'anew = {"anew": 1}\n'),
        ("module.py", '"""Return it.\n\n>>> for anew in ():\n...     tell(anew)\n"""\n'),
    ],
)
def test_good_sentences_and_code_are_accepted(faults, name, text):
    assert faults(text, name) == []


def test_main_names_file_and_line_and_exits_with_1(prose, tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    page.write_text("Read it.\n\nRead it anew.\n")
    monkeypatch.setattr(sys, "argv", ["prose.py", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        prose.main()
    # A string as exit code is printed, and the process exits with 1.
    assert end.value.code == "Faults: 1. Rewrite these sentences."
    assert capsys.readouterr().out == f"{page}:3: 'anew': again\n    Read it anew.\n"
    page.write_text("Read it again.\n")
    prose.main()
