"""Errors of the Python calls name keywords, not options of the command line."""

import pytest

import batchmill
from batchmill import ManifestError, OptionError, StepError

SPLIT = "batchmill.steps.words:split"


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: batchmill.run("in", SPLIT, None), "output"),
        (lambda: batchmill.run(None, SPLIT, "out"), "manifest"),
        (lambda: batchmill.plan("in", None, "out"), "step"),
        (lambda: batchmill.infer("in", model=None, output="out"), "model"),
        (lambda: batchmill.status(None), "dataset"),
        (lambda: batchmill.failures(None), "dataset"),
    ],
)
def test_none_for_a_required_argument_is_reported(call, argument):
    with pytest.raises(OptionError, match=rf"^{argument}: got None. Give a value, as help\(batch"):
        call()


def test_a_remedy_is_a_keyword(tmp_path):
    manifest = ["a.txt", "b.txt"]
    with pytest.raises(ManifestError, match="To run the job anyway: allow_missing=True") as raised:
        batchmill.plan(manifest, SPLIT, tmp_path / "out", root=tmp_path)
    assert raised.value.faults[0].endswith("allow_missing=True")
    with pytest.raises(StepError, match=r"Add params=\{'seconds': \.\.\.\}"):
        batchmill.plan(manifest, lambda source, *, seconds: None, tmp_path / "out")
