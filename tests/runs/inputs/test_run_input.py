"""Runs a step on one input: its outcome, its files, and no leftovers."""

import errno
import os
import re
import stat

import pytest
from harness.live import STEP_MODULES

from batchmill.core.storage import LocalStore
from batchmill.core.user_step.load import Step, load_step
from batchmill.runs.inputs.call_step import make_dataset
from batchmill.runs.inputs.run_input import StepHooks, execute_input, run_step
from batchmill.runs.inputs.staging import Input, open_staging

HERE = str(STEP_MODULES)


@pytest.fixture
def dataset(tmp_path):
    return tmp_path / "dataset"


def run(dataset, source, step, row=None):
    item = Input(source.name, f"id-{source.name}", str(source), row or {})
    with open_staging(LocalStore(dataset), "one") as staging:
        return execute_input(step, item, staging, lambda: make_dataset(step, [item])[0])


def step_of(target, given=("out",)):
    return Step(
        ref="test:step",
        kind="function",
        target=target,
        params={},
        given=frozenset(given),
        identity="",
        description={},
    )


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def folder_of(dataset):
    """Return the only folder of outputs. Its name is the input's id and a hash of the contents."""
    (folder,) = (dataset / "files").iterdir()
    assert re.fullmatch("id-a[.]txt[.][0-9a-f]{12}", folder.name)
    return f"files/{folder.name}"


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("simple")
    return path


def test_files_are_stored_under_the_inputs_id_and_rows_name_them(dataset, source):
    outcome = run(dataset, source, load_step("steps_under_test:copy", {"times": 2}, search=HERE))
    assert outcome.kind == "ok"
    folder = folder_of(dataset)
    assert outcome.rows == (
        f'[{{"output":"{folder}/0.txt","copy":0}},{{"output":"{folder}/1.txt","copy":1}}]'
    )
    names = [f"{folder}/0.txt", f"{folder}/1.txt"]
    assert [(file.path, file.size) for file in outcome.outputs] == [(name, 6) for name in names]
    assert files_in(dataset) == names


def test_a_step_without_files_leaves_no_folder(dataset, source):
    outcome = run(dataset, source, load_step("steps_under_test:length", search=HERE))
    assert (outcome.kind, outcome.rows) == ("ok", '[{"length":6}]')
    assert list((dataset / "files").iterdir()) == []
    assert not (dataset / ".batchmill" / "staging").exists()


def test_a_step_receives_the_manifests_other_columns(dataset, source):
    step = load_step("steps_under_test:labelled", search=HERE)
    assert run(dataset, source, step, {"label": "x"}).rows == '[{"twice":"xx"}]'


def test_values_are_converted_before_the_step_counts_as_done(dataset, source):
    calls = []

    class Number:
        def __float__(self):
            calls.append("convert")
            return 0.5

    step = step_of(lambda source: {"x": Number()}, given=())
    item = Input("a", "id", str(source), {})
    hooks = StepHooks(after=lambda: calls.append("after"))
    with open_staging(LocalStore(dataset), "one") as staging:
        outcome = run_step(step, item, staging, list, hooks)
    assert (outcome.rows, calls) == ('[{"x":0.5}]', ["convert", "after"])


def test_a_class_step_is_indexed(dataset, source):
    step = load_step("steps_under_test:Splitter", {"size": 3}, search=HERE)
    assert run(dataset, source, step).rows == '[{"value":"sim"}]'
    step = load_step("steps_under_test:Labelled", search=HERE)
    assert run(dataset, source, step, {"label": 7}).rows == '[{"label_of":7}]'


def test_a_torch_dataset_without_one_item_per_input_is_rejected(dataset, source):
    outcome = run(dataset, source, load_step("steps_under_test:OneShort", search=HERE))
    assert outcome.error == "StepError"
    assert "has 0 items for 1 inputs" in outcome.message


def test_a_failure_leaves_no_files(dataset, tmp_path):
    source = tmp_path / "b.txt"
    source.write_text("x")
    outcome = run(dataset, source, load_step("steps_under_test:fails_on_b", search=HERE))
    assert (outcome.kind, outcome.error) == ("failed", "ValueError")
    assert outcome.message == "bad header\nand more"
    assert outcome.reason == "ValueError: bad header"
    assert files_in(dataset) == []


def test_the_traceback_begins_at_the_step(dataset, tmp_path):
    source = tmp_path / "b.txt"
    source.write_text("x")
    outcome = run(dataset, source, load_step("steps_under_test:fails_on_b", search=HERE))
    assert "in fails_on_b" in outcome.traceback
    assert "run_input.py" not in outcome.traceback


def test_an_input_that_does_not_exist_is_missing(dataset, tmp_path):
    outcome = run(dataset, tmp_path / "gone.txt", load_step("steps_under_test:length", search=HERE))
    assert outcome.kind == "missing"
    assert "no such file" in outcome.message


class UnprintableError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        MemoryError(),
        SystemExit(3),
        KeyboardInterrupt(),
        StopIteration(),
        GeneratorExit(),
        RecursionError(),
        UnprintableError(),
        BaseExceptionGroup("two", [ValueError("a"), KeyError("b")]),
        OSError(5, "Input/output error"),
    ],
)
def test_any_raised_error_gives_a_failed_outcome(dataset, source, error):
    def raises(source, out):
        raise error

    def yields_first(source, out):
        yield {"a": 1}
        raise error

    for step in (step_of(raises), step_of(yields_first)):
        outcome = run(dataset, source, step)
        assert outcome.kind == "failed"
        # Python converts a StopIteration that leaves a generator to a RuntimeError.
        assert outcome.error in (type(error).__name__, "RuntimeError")
        assert outcome.traceback


def writes(*names, rows):
    def step(source, out):
        for name in names:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_text("x")
        return [{"output": row} for row in rows]

    return step_of(step)


@pytest.mark.parametrize(
    ("written", "named", "expected"),
    [
        (["a"], [], "written but not named: a"),
        ([], ["a"], "named but not written: a"),
        (["a"], ["b"], "named but not written: b; written but not named: a"),
        (["a"], ["../a"], "'../a', which is not below its output folder"),
        (["a"], ["/a"], "'/a', which is not below"),
        (["a"], ["sub/../../a"], "not below its output folder"),
        (["caf\udce9"], ["caf\udce9"], "whose name is not UTF-8"),
        (["a"], [3], "output=3; expected a file's name"),
        (["a"], [""], "output=''; expected a file's name"),
    ],
)
def test_written_files_and_named_files_must_agree(dataset, source, written, named, expected):
    outcome = run(dataset, source, writes(*written, rows=named))
    assert outcome.kind == "failed"
    assert expected in outcome.message
    assert files_in(dataset) == []


def test_out_may_have_folders_and_a_file_may_have_two_rows(dataset, source):
    outcome = run(dataset, source, writes("a", "sub/b", rows=["a", "sub/b", "./a"]))
    assert outcome.kind == "ok"
    folder = folder_of(dataset)
    assert files_in(dataset) == [f"{folder}/a", f"{folder}/sub/b"]


def test_folders_of_outputs_become_writable_again(dataset, source):
    def step(source, out):
        (out / "sub").mkdir()
        (out / "sub" / "a").write_text("x")
        (out / "sub").chmod(0o500)
        out.chmod(0o500)
        return {"output": "sub/a"}

    assert run(dataset, source, step_of(step)).kind == "ok"
    for folder in (folder_of(dataset), f"{folder_of(dataset)}/sub"):
        assert stat.S_IMODE((dataset / folder).stat().st_mode) == 0o700


def test_a_symbolic_link_is_rejected(dataset, source, tmp_path):
    def step(source, out):
        os.symlink(tmp_path / "a.txt", out / "link")
        return {"output": "link"}

    outcome = run(dataset, source, step_of(step))
    assert "symbolic link" in outcome.message
    assert files_in(dataset) == []


@pytest.mark.parametrize("replacement", [None, "link", "file"])
def test_a_step_must_not_remove_or_replace_its_folder(dataset, source, tmp_path, replacement):
    def step(source, out):
        out.rmdir()
        if replacement == "link":
            out.symlink_to(tmp_path)
        elif replacement:
            out.write_text("x")

    message = run(dataset, source, step_of(step)).message
    assert message == "the step removed or replaced the folder `out`. Only write into it."


def test_empty_folders_are_left_out(dataset, source):
    def step(source, out):
        (out / "empty" / "deeper").mkdir(parents=True)
        (out / "a").write_text("x")
        return {"output": "a"}

    assert run(dataset, source, step_of(step)).kind == "ok"
    assert os.listdir(dataset / folder_of(dataset)) == ["a"]


def test_a_hard_link_to_the_input_becomes_a_file_of_its_own(dataset, source):
    def step(source, out):
        os.link(source, out / "same.txt")
        return {"output": "same.txt"}

    before = source.read_bytes()
    outcome = run(dataset, source, step_of(step))
    source.write_bytes(b"changed later")
    (output,) = outcome.outputs
    assert (dataset / output.path).read_bytes() == before


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["a", "b"], ["a"]),
        (["a"], ["a", "b"]),
        (["x"], ["x/y"]),
        (["x/y"], ["x"]),
        (["a", "x/y"], ["a", "x"]),
        (["a"], []),
    ],
)
def test_a_second_execution_leaves_the_files_of_the_first(dataset, source, before, after):
    first = run(dataset, source, writes(*before, rows=before))
    second = run(dataset, source, writes(*after, rows=after))
    assert [first.kind, second.kind] == ["ok", "ok"]
    written = [file.path for outcome in (first, second) for file in outcome.outputs]
    assert files_in(dataset) == sorted(written)
    assert len(written) == len(before) + len(after)


def test_a_second_execution_with_equal_files_adds_nothing(dataset, source):
    first = run(dataset, source, writes("a", "x/y", rows=["a", "x/y"]))
    second = run(dataset, source, writes("a", "x/y", rows=["x/y", "a"]))
    assert first.outputs == second.outputs
    assert files_in(dataset) == [file.path for file in first.outputs]


def test_a_second_execution_replaces_files_that_were_damaged(dataset, source):
    first = run(dataset, source, writes("a", "b", rows=["a", "b"]))
    _, damaged = (dataset / file.path for file in first.outputs)
    content = damaged.read_bytes()
    damaged.write_bytes(b"?" * len(content))
    (damaged.parent / "stray").write_bytes(b"")
    second = run(dataset, source, writes("a", "b", rows=["a", "b"]))
    assert (first.outputs, damaged.read_bytes()) == (second.outputs, content)
    assert files_in(dataset) == [file.path for file in first.outputs]


def test_a_failure_does_not_remove_the_files_of_an_earlier_run(dataset, source):
    run(dataset, source, writes("a", rows=["a"]))
    before = files_in(dataset)
    assert run(dataset, source, writes("a", rows=["b"])).kind == "failed"
    assert files_in(dataset) == before


def test_error_messages_are_shortened_and_printable(dataset, source):
    def step(source, out):
        raise ValueError("x" * 10_000_000 + "\0\ud800")

    outcome = run(dataset, source, step_of(step))
    assert len(outcome.message) < 100_000
    assert "characters left out" in outcome.message
    outcome.message.encode()
    assert "\0" not in outcome.message


def test_an_absolute_path_below_out_is_accepted(dataset, source):
    def step(source, out):
        (out / "a").write_text("x")
        return {"output": out / "a"}

    assert run(dataset, source, step_of(step)).kind == "ok"
    assert files_in(dataset) == [f"{folder_of(dataset)}/a"]


def no_space(source, out):
    """Fail like Pillow: remove the incomplete file, and raise."""
    try:
        raise OSError(errno.ENOSPC, "No space left on device")
    except OSError as error:
        raise ValueError("cannot save") from error


@pytest.mark.parametrize(
    ("free", "kind", "error"), [(2**20, "cancelled", "StoreError"), (2**30, "failed", "ValueError")]
)
def test_an_error_of_a_full_disk_is_the_inputs_only_if_it_filled_the_disk(
    dataset, source, monkeypatch, free, kind, error
):
    monkeypatch.setattr(
        "batchmill.runs.inputs.failed_outcomes.has_room", lambda folder, needed=0: free >= needed
    )
    outcome = run(dataset, source, step_of(no_space))
    assert (outcome.kind, outcome.error) == (kind, error)
    assert (f"{dataset}/" in outcome.message) == (kind == "cancelled"), "the disk is named"


def test_an_input_whose_files_fill_the_disk_is_failed(dataset, source, monkeypatch):
    """The disk is full until the files of this input are removed."""

    def has_room(folder, needed=0):
        return not list(folder.rglob("large"))

    def fill(source, out):
        (out / "large").write_text("x")
        raise RuntimeError("cannot write")

    monkeypatch.setattr("batchmill.runs.inputs.failed_outcomes.has_room", has_room)
    outcome = run(dataset, source, step_of(fill))
    assert (outcome.kind, outcome.message) == ("failed", "cannot write")
