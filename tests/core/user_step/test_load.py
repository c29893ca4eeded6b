"""Test loading steps by reference, and their parameters."""

import functools
import importlib
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from harness.live import STEP_MODULES

from batchmill import OptionError, StepError
from batchmill.core.user_step.load import load_step, reference_to
from batchmill.core.user_step.params import parse_params, read_object
from batchmill.core.user_step.value.shipping import load_given_step, name_of

HERE = str(STEP_MODULES)
STEPS = "steps_under_test"


def load(attribute: str, **params):
    return load_step(f"{STEPS}:{attribute}", params, search=HERE)


@pytest.mark.parametrize(
    ("name", "kind", "given"),
    [
        ("length", "function", set()),
        ("copy", "function", {"out"}),
        ("labelled", "function", {"row"}),
        ("Splitter", "dataset", set()),
        ("letters", "items", set()),
    ],
)
def test_the_kind_follows_from_the_attributes(name, kind, given):
    step = load(name)
    assert (step.kind, step.given) == (kind, given)


@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        ("words", "expected package.module:attribute"),
        (":x", "expected package.module:attribute"),
        ("dir/mine.py:split", "expected a module, such as dir.mine:split"),
        ("no_such_module:x", "no module 'no_such_module'"),
        (f"{STEPS}:nope", "has no 'nope'. It has: Clip, Colour, Labelled"),
        (f"{STEPS}:length.nope", "length has no 'nope'"),
        (f"{STEPS}:NoDataset", "has no __getitem__ and __len__"),
        (f"{STEPS}:no_input", "takes no positional parameter"),
        (f"{STEPS}:dataclasses", "is a module; expected a function"),
    ],
)
def test_a_wrong_reference_reports_what_was_found_and_expected(ref, expected):
    with pytest.raises(StepError) as caught:
        load_step(ref, {}, search=HERE)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import no_such_library", "imports 'no_such_library', which is not installed"),
        ("1 / 0", "failed with ZeroDivisionError: division by zero (line 1 of"),
        # The frame of the error belongs to the import, not to the module.
        ("def (", "failed with SyntaxError: invalid syntax ({name}.py, line 1). Fix the module"),
        ("raise SystemExit(3)", "failed with SystemExit"),
    ],
)
def test_a_module_that_cannot_be_imported(tmp_path, source, expected):
    name = f"broken_{abs(hash(source))}"
    (tmp_path / f"{name}.py").write_text(source)
    with pytest.raises(StepError) as caught:
        load_step(f"{name}:x", {}, search=str(tmp_path))
    assert expected.format(name=name) in str(caught.value)


def test_the_search_folder_comes_last(tmp_path):
    (tmp_path / "json.py").write_text("def dumps(source): return 'mine'")
    assert load_step("json:dumps", {}, search=str(tmp_path)).target is json.dumps


@pytest.mark.parametrize(
    ("name", "params", "expected"),
    [
        ("annotated", {}, "parameter 'seconds' is missing"),
        ("annotated", {"seconds": "soon"}, "'seconds' is 'soon' (str), expected float"),
        ("annotated", {"seconds": 1, "mode": "x"}, "expected Literal['fast', 'slow']"),
        ("annotated", {"seconds": 1, "speed": 2}, "unknown parameter 'speed'. It takes: seconds"),
        ("copy", {"out": "x"}, "unknown parameter 'out'"),
        ("copy", {"source": "x"}, "unknown parameter 'source'"),
        ("swapped", {}, "(the first parameter is the input's path: put it before 'out')"),
        ("two_inputs", {}, "'target' is missing. Add --param target=... (a step's output"),
        ("positional", {}, "parameter 'k' is positional-only"),
        ("letters", {"n": 1}, "is a list, which takes no parameters"),
        ("counting", {"words": ["a.csv"]}, "'words' is a list; ContentCounts() needs one path"),
        ("Splitter", {"length": 1}, "unknown parameter 'length'. It takes: size"),
    ],
)
def test_unsuitable_parameters_are_rejected(name, params, expected):
    with pytest.raises(StepError) as caught:
        load(name, **params)
    assert expected in str(caught.value)


def test_all_faults_of_parameters_are_reported_together():
    with pytest.raises(StepError) as caught:
        load("annotated", seconds="soon", speed=1)
    assert "'seconds'" in str(caught.value)
    assert "'speed'" in str(caught.value)


def test_parameters_are_converted_to_their_types():
    params = load("annotated", seconds=5, name=7).params
    assert params == {"seconds": 5.0, "mode": "fast", "name": "7"}
    assert isinstance(params["seconds"], float)
    assert load("anything", a=1).params == {"a": 1}


def test_the_content_of_a_marked_file_is_part_of_the_identity(tmp_path):
    words, identities = tmp_path / "words.txt", set()
    for text in ("one", "two"):
        words.write_text(text)
        identities.add(load("with_words", words=str(words)).identity)
    assert len(identities) == 2


@pytest.mark.slow
def test_identity_depends_on_source_and_params_only(tmp_path):
    assert load("annotated", seconds=5).identity == load("annotated", seconds=5.0).identity
    assert load("annotated", seconds=5).identity != load("annotated", seconds=6).identity
    assert load("annotated", seconds=5).identity == (
        load("annotated", seconds=5, mode="fast").identity
    )
    identities = set()
    for body in ("1", "2"):
        (tmp_path / "versioned.py").write_text(f"def step(source): return {body}")
        script = (
            "from batchmill.core.user_step.load import load_step;"
            f"print(load_step('versioned:step', {{}}, search={str(tmp_path)!r}).identity)"
        )
        for _ in range(2):
            done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
            identities.add(done.stdout)
    assert len(identities) == 2


def test_functions_have_references():
    from batchmill.steps.words import split

    assert reference_to(split) == "batchmill.steps.words:split"
    assert reference_to("a.b:c") == "a.b:c"
    assert reference_to(lambda source: None) is None
    assert reference_to([1].append) is None
    with pytest.raises(StepError, match="other processes cannot import __main__"):
        load_step("__main__:step")


def test_a_function_keeps_its_reference_when_its_module_is_reloaded(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "reloaded.py").write_text("def step(source): return {}\n")
    module = importlib.import_module("reloaded")
    step = module.step
    importlib.reload(module)
    assert module.step is not step
    assert reference_to(step) == "reloaded:step"


def test_a_wrapper_with_the_name_of_an_importable_function_is_a_step_of_its_own():
    from batchmill.steps.words import split

    @functools.wraps(split)
    def wrapper(*args, **kwargs):
        return split(*args, **kwargs)

    assert reference_to(wrapper) is None
    assert reference_to(functools.lru_cache(split)) is None
    assert load_given_step(wrapper, {}, search="").target is wrapper
    with pytest.raises(StepError):  # A saved job of the wrapper does not run `split`.
        load_step(name_of(wrapper))


def test_params_from_the_command_line(tmp_path):
    file = tmp_path / "params.json"
    file.write_text('{"seconds": 1, "mode": "slow"}')
    assert parse_params(["seconds=2.5", "name=a=b"], file) == {
        "seconds": 2.5,
        "mode": "slow",
        "name": "a=b",
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1.10", "1.10"), ("1e5", "1e5"), ("Infinity", "Infinity"), ("true", "true"), ("5", 5)],
)
def test_a_number_stays_text_for_a_parameter_that_only_takes_text(
    tmp_path, monkeypatch, text, expected
):
    monkeypatch.chdir(tmp_path)
    code = f"""
from pathlib import Path
from typing import Literal
def step(
    source, *, name: str, either: int | str, mode: Literal["", "{text}"] = "",
    path: Path | None = None, number: float = 0, any=0,
): ...
"""
    (tmp_path / "texts.py").write_text(code)
    given = [f"{name}={text}" for name in ("name", "either", "mode", "path")]
    params = parse_params(given, None, "texts:step")
    assert params["name"] == expected
    used = load_step("texts:step", params, search=".").params
    assert (used["name"], used["mode"], used["path"]) == (text, text, Path(text))
    numbers = {"number": json.loads(text), "any": json.loads(text)}
    assert parse_params([f"number={text}", f"any={text}"], None, "texts:step") == numbers


@pytest.mark.parametrize(
    ("content", "expected"), [("[1]", "holds a list"), ("{", "is not JSON"), (None, "No such file")]
)
def test_an_invalid_params_file_is_rejected(tmp_path, content, expected):
    file = tmp_path / "params.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(OptionError, match=expected):
        parse_params([], file)
    with pytest.raises(OptionError, match="expected key=value"):
        parse_params(["seconds"])
    with pytest.raises(OptionError, match="expected key=value"):
        parse_params([" =5"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nowhere.yaml", "--runtime-env nowhere.yaml: No such file"),
        ('{"pip": ', "is not valid JSON or YAML at line 1, column 9. Fix the text."),
        ("[1]", "No such file"),
    ],
)
def test_an_invalid_object_is_rejected(tmp_path, monkeypatch, text, expected):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match=expected):
        read_object(text, "--runtime-env")


def test_a_module_that_starts_a_run_on_import_is_rejected(tmp_path, words, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "starts.py").write_text(
        "import batchmill\n"
        "def count(source): return {}\n"
        f"batchmill.run({str(words)!r}, count, 'out')\n"
    )
    with pytest.raises(StepError, match="if __name__ == '__main__'"):
        load_step("starts:count", {}, search=str(tmp_path))
    assert not (tmp_path / "out").exists()


def test_names_of_steps_without_a_reference_are_no_references():
    class Length:
        def __call__(self, source): ...

    for step, name in {
        Length().__call__: "Length.__call__ (method)",
        Length(): "Length (object)",
        partial(parse_params, file=None): "parse_params (partial)",
    }.items():
        given = name_of(step)
        assert given.endswith(name)
        with pytest.raises(StepError):
            load_step(given)
