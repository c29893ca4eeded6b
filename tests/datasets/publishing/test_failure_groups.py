"""Failed inputs are grouped by their cause. The numbers of the groups are stable."""

import json
import shlex
import subprocess
import sys

import pandas as pd
import pytest
from harness.jobs import run_job

import batchmill
from batchmill.cli.main import main
from batchmill.core.failure_causes import normalised
from batchmill.core.ledger.open import open_ledger
from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.planning.run_spec import read_spec
from batchmill.datasets.publishing.failure_groups import own_frames, read_failures
from batchmill.datasets.publishing.run_message import failure_message
from batchmill.datasets.publishing.run_summary import summarise
from batchmill.errors import OptionError

pytestmark = pytest.mark.slow

STEP = """
import json, threading

def header(text, at):
    if text.startswith("bad"):
        raise ValueError(f"bad header at byte {at} of {text!r}")

def step(source, row, level=0, mode="x"):
    text = source.read_text()
    header(text, len(text))
    if text.startswith("list"):
        json.loads("[" * int(text[4:]))
    if text == "hang":
        threading.Event().wait()
    if text == "fill":
        kept = bytearray(b"x") * 400_000_000
        threading.Event().wait()
    if text.startswith("odd"):
        raise ValueError(f"bad header at byte {len(text)} of {text!r}")
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs the step over files, and returns the groups of failures."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grouped.py").write_text(STEP)
    (tmp_path / "in").mkdir()

    def run(contents, limits=None, **params):
        for name, content in contents.items():
            (tmp_path / "in" / name).write_text(content)
        rows = ["input,label", *(f"{name},dog house" for name in contents)]
        (tmp_path / "in" / "m.csv").write_text("\n".join(rows) + "\n")
        policy = FailurePolicy(retries=0, **limits or {})
        summary = run_job("in/m.csv", "grouped:step", "out", policy=policy, **params)
        return summary.groups

    return run


def failures_of(count, word):
    return {f"{word}-{n}.txt": f"{word} {'x' * n}" for n in range(count, 0, -1)}


def test_failures_that_differ_in_numbers_and_names_are_one_group(run):
    groups = run({"good.txt": "fine"} | failures_of(4, "bad"))
    (group,) = groups
    assert (group.number, group.inputs, group.outcome, group.error) == (
        1,
        4,
        "failed",
        "ValueError",
    )
    assert group.examples == ("bad-1.txt", "bad-2.txt", "bad-3.txt")
    assert (group.smallest, group.sizes) == ("bad-1.txt", (5, 8))
    assert group.place == "header, grouped.py"


def test_another_function_is_another_group(run):
    one = {"a.txt": "bad 1", "b.txt": "bad 22", "d.wav": "bad 1"}
    groups = run(one | {"c.txt": "odd 1", "e.txt": "list2", "f.txt": "list9"})
    assert [group.examples for group in groups] == [
        ("a.txt", "b.txt", "d.wav"),
        ("e.txt", "f.txt"),
        ("c.txt",),
    ]
    # The library's functions are left out.
    assert groups[1].place == "step, grouped.py"


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        # All files of the kind fail, and most others do not.
        ({"e.jpg": "fine", "f.jpg": "fine", "g.jpg": "fine"}, [("a.tif", 3), ("d.jpg", 1)]),
        # One file of the kind is good.
        ({"e.jpg": "fine", "f.jpg": "fine", "g.tif": "fine"}, [("a.tif", 4)]),
        # Most others fail, too.
        ({"e.jpg": "fine", "f.jpg": "bad 7"}, [("a.tif", 5)]),
    ],
)
def test_a_kind_of_files_is_a_group_if_it_explains_the_failure(run, others, expected):
    kind = {"a.tif": "bad", "b.tif": "bad 1", "c.tif": "bad 2"}
    groups = run(kind | {"d.jpg": "bad 3"} | others)
    assert [(group.smallest, group.inputs) for group in groups] == expected


def test_a_group_describes_its_inputs(run, tmp_path):
    (tmp_path / "in" / "sub").mkdir()
    one = {"sub/a.jpg": "bad", "sub/b.JPG": "bad 1", "sub/c.tif": "bad 123456"}
    (group,) = run(one)
    assert group.described == "2 .jpg, 1 .tif; 3 bytes to 10 bytes; in sub"
    more = {f"d.{letter}{number}": "bad" for letter in "abc" for number in range(2)}
    (group,) = run(one | more)
    assert group.described == "2 .a*, 2 .b*, 2 .c*, 3 others; 3 bytes to 10 bytes; in 2 folders"


def test_the_command_of_a_group_shows_its_error(run, tmp_path):
    (group,) = run(failures_of(2, "bad"), level=2, mode="3")
    words = shlex.split(group.command)
    assert words[:2] == ["batchmill", "try"]
    assert "label=dog house" in words
    ran = subprocess.run(
        [sys.executable, "-m", *words], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 1
    assert "ValueError: bad header at byte 5 of 'bad x'" in ran.stdout
    assert "in header" in ran.stdout
    assert 'mode="3"' in words  # A text that looks like a number stays a text.


def test_the_command_of_a_group_has_its_urls_without_secrets(run):
    (group,) = run({"a.txt": "bad"}, mode="https://host/a?b=1&c", level="https://host/a?token=b c")
    words = shlex.split(group.command)
    assert {"mode=https://host/a?b=1&c", "level=https://***host/a c"} <= {*words}


def test_the_command_of_a_group_has_the_limit_that_its_inputs_exceeded(run):
    contents = {"a.txt": "hang", "b.txt": "fill", "c.txt": "bad"}
    groups = run(contents, limits={"timeout": 1.5, "memory_limit": "100M"})
    assert {group.outcome: shlex.split(group.command)[-2:] for group in groups} == {
        "timeout": ["--timeout", "1.5"],
        "oom": ["--memory-limit", "100M"],
        "failed": ["--row", "label=dog house"],
    }


def test_all_commands_number_the_groups_alike(run, capsys):
    contents = failures_of(3, "bad") | {"z.txt": "odd 1", "y.txt": "odd 2"}
    groups = run(contents)
    ledger = open_ledger("out")
    assert read_failures(ledger.state(), read_spec(ledger, 1)).groups == groups
    published = pd.read_csv("out/failures.csv").set_index("input")["group"].to_dict()
    assert published == {name: 1 if name.startswith("bad") else 2 for name in contents}
    assert batchmill.failures("out", group=2)["input"].tolist() == ["y.txt", "z.txt"]
    with pytest.raises(SystemExit):
        main(["status", "out", "--json"])
    shown = json.loads(capsys.readouterr().out)["groups"]
    assert [(one["number"], one["inputs"]) for one in shown] == [(1, 3), (2, 2)]
    assert batchmill.retry("out", group=[2]) == ["y.txt", "z.txt"]
    with pytest.raises(OptionError, match=r"^group 3: out has 2 groups"):
        batchmill.failures("out", group=3)


def test_the_message_shows_three_groups_and_the_report_five(run, tmp_path):
    names = ("one", "two", "three", "four", "five", "six")
    kinds = {f"{letter}.{name}": "bad" for name in names for letter in "abc"}
    good = {f"{number}.txt": "fine" for number in range(19)}
    run(good | kinds | {"d.one": "bad 2"})
    message = failure_message(summarise(open_ledger("out"), 1), "my out")
    assert message.endswith("batchmill failures 'my out' --group 1")
    assert "group 1: 4 inputs: failed: ValueError: bad header at byte" in message
    assert "a.one, b.one, c.one, ... (3 bytes to 5 bytes)" in message
    assert message.count("Try it: batchmill try ") == 3
    assert "... and 3 more groups" in message
    page = (tmp_path / "out" / "report.html").read_text()
    shown, folded = page.split("<summary>1 smaller group</summary>")
    assert (shown.count("<b>Group"), folded.count("<b>Group")) == (5, 1)


def test_a_missing_file_has_no_command(run, tmp_path):
    run({"a.txt": "fine", "b.txt": "fine", "c.txt": "fine", "d.txt": "fine"})
    (tmp_path / "in" / "m.csv").write_text("input,label\na.txt,x\nb.txt,x\nno.wav,x\nno.mp3,x\n")
    (group,) = run_job("in/m.csv", "grouped:step", "out").groups
    assert (group.outcome, group.inputs, group.command, group.described) == ("missing", 2, "", "")


def test_what_differs_between_inputs_is_removed_from_messages():
    assert normalised("no key 'a b' at 0x7f3a in /tmp/x-1/y.wav: 1.5e-3 s") == (
        "no key * at * in *: * s"
    )
    assert normalised("can't and don't") == "can't and don't"
    assert normalised("see:/tmp/a and 'b' in c/d.wav") == "see:* and * in *"
    assert normalised("hash 0123456789abcdef of dead beef") == "hash * of dead beef"


def test_frames_of_a_crash_come_from_its_last_stack():
    log = """File "/my/print.py", line 3 in printed
Fatal Python error: Segmentation fault

Current thread 0x00007f (most recent call first):
  File "/my/inner.py", line 7 in inner
  File "/venv/lib/python3.11/site-packages/torch/x.py", line 1 in forward
  File "/my/outer.py", line 2 in outer
  File "/my/outer.py", line 4 in outer

Extension modules: File "/my/no.py", line 4 in no
"""
    assert own_frames("", log, "crashed") == ("outer, outer.py", "inner, inner.py")
    assert own_frames("", log, "timeout") == ()


def test_the_file_of_a_cell_has_no_name_for_a_user():
    frame = '  File "/tmp/ipykernel_7/2411712484.py", line 3, in step'
    assert own_frames(frame, "", "failed") == ("step",)


def test_a_short_name_of_an_input_is_no_part_of_a_word(run):
    run({"a": "bad", "d": "bad"})
    (group,) = read_failures(open_ledger("out").state()).groups
    assert group.inputs == 2
