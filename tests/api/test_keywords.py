"""The options of the Python functions match the option models."""

import inspect
import subprocess
import sys
from typing import get_type_hints

import pytest

import batchmill
from batchmill.api.keywords import InferKeywords, JobKeywords
from batchmill.core.options.job_options import ConfinementOptions, JobSettings, ModelOptions

GROUPS = [type(group) for group in JobSettings().parameters().values()]
# A model cannot be confined.
GROUPS_OF_INFER = [ModelOptions, *(one for one in GROUPS if one is not ConfinementOptions)]


def fields_of(*groups):
    return {name: field for group in groups for name, field in group.model_fields.items()}


@pytest.mark.parametrize(
    ("keywords", "groups"), [(JobKeywords, GROUPS), (InferKeywords, GROUPS_OF_INFER)]
)
def test_the_keywords_for_type_checkers_match_the_models(keywords, groups):
    assert get_type_hints(keywords).keys() == fields_of(*groups).keys()


@pytest.mark.parametrize("call", [batchmill.run, batchmill.infer, batchmill.plan])
def test_help_shows_each_option_with_its_default_and_its_description(call):
    fields = fields_of(*(GROUPS_OF_INFER if call is batchmill.infer else GROUPS))
    parameters = inspect.signature(call).parameters
    text = " ".join(call.__doc__.split())
    for name, field in fields.items():
        assert parameters[name].default == field.default
        assert f"{name}: {' '.join(field.description.split())}" in text


SCRIPT = """
from pathlib import Path

import batchmill
import pandas as pd

def count(source: Path) -> dict[str, int]:
    return {"bytes": source.stat().st_size}

result: batchmill.RunResult = batchmill.run(
    Path("words.csv"), count, "dataset", params={}, retries=2, max_failures=3, num_workers=2,
    partition={"train": 0.8, "test": 0.2}, timeout=None,
)
frame: pd.DataFrame = result.metadata
counts: dict[str, int] = result.counts
released: list[str] = batchmill.retry("dataset", kind=["crashed"])
batchmill.plan(["a.txt"], "batchmill.steps.words:split", "dataset", batch_size=3).shards + 1
"""


@pytest.mark.long  # mypy reads all types of pandas, which takes half a minute.
def test_a_users_script_passes_a_strict_type_checker(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    check = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "script.py"]
    done = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    (tmp_path / "script.py").write_text(SCRIPT.replace("retries=2", 'retries="two"'))
    done = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True)
    assert 'argument "retries"' in done.stdout.lower()
