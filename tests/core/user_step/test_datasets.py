"""Test torch Datasets as steps: classes and objects without changes."""

import json
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from harness.jobs import run_job
from harness.live import STEP_MODULES
from PIL import Image

from batchmill import StepError
from batchmill.core.planning.job import make_job
from batchmill.core.planning.prepare import prepare
from batchmill.core.user_step.load import load_step

HERE = str(STEP_MODULES)
MODULE = "datasets_under_test"
INPUTS = 5


@pytest.fixture(autouse=True)
def _steps_can_be_imported(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return a folder with the data of a torch Dataset. It is the working directory."""
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    for number in range(INPUTS):
        torch.save(torch.full((2, 2), float(number)), folder / "data" / f"id-{number}.pt")
    lines = [f"data/id-{number}.pt,{number * 10}" for number in (3, 1, 4, 0, 2)]
    (folder / "data.csv").write_text("\n".join(["input,label", *lines, ""]))
    monkeypatch.chdir(folder)
    return folder


def names(tmp_path, count):
    """Return a folder with `count` inputs, for steps that do not read them."""
    folder = tmp_path / "names"
    folder.mkdir()
    for number in range(count):
        (folder / f"{number}.txt").write_text(str(number))
    return folder


def run(manifest, name, tmp_path, **options):
    summary = run_job(manifest, f"{MODULE}:{name}", tmp_path / "out", **options)
    table = pd.read_parquet(tmp_path / "out" / "metadata.parquet")
    return summary, table


@pytest.mark.parametrize("batch_size", [1, 2, 3, 100])
def test_an_image_folder_with_a_smaller_last_batch(tmp_path, batch_size):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(INPUTS):
        samples = np.full((4, 6, 3), number, np.uint8)
        Image.fromarray(samples).save(folder / f"{number}.png")
    summary, table = run(folder, "Pictures", tmp_path, batch_size=batch_size, scale=2.0)
    assert summary.outcomes == {"ok": INPUTS}
    assert [json.loads(mean) for mean in table["mean"]] == [
        [2.0 * number] * 3 for number in range(INPUTS)
    ]
    assert [json.loads(size) for size in table["size"]] == [[4, 6]] * INPUTS


@pytest.mark.parametrize("name", ["saved", "SavedByPath"])
@pytest.mark.parametrize("batch_size", [2, 100])
def test_tensors_by_their_ids(project, tmp_path, name, batch_size):
    summary, table = run(project / "data.csv", name, tmp_path, batch_size=batch_size)
    assert summary.outcomes == {"ok": INPUTS}
    assert dict(zip(table["input"], map(json.loads, table["value"]), strict=True)) == {
        f"data/id-{number}.pt": [[[number] * 2] * 2, number * 10] for number in range(INPUTS)
    }


def test_a_missing_tensor_fails_only_its_own_input(project, tmp_path):
    (project / "data" / "id-1.pt").write_bytes(b"no tensor")
    summary, _ = run(project / "data.csv", "saved", tmp_path)
    assert summary.outcomes == {"ok": INPUTS - 1, "failed": 1}
    assert summary.failures[0][0] == "data/id-1.pt"


def test_named_tuples_become_columns_and_nested_values_become_json(tmp_path):
    summary, table = run(names(tmp_path, 5), "samples", tmp_path, batch_size=2)
    assert summary.outcomes == {"ok": 5}
    assert list(table["name"]) == ["a", "b", "c", "d", "e"]
    row = table.iloc[3]
    point = {"x": 3, "y": 3.5}
    assert json.loads(row["box"]) == [point, point]
    assert json.loads(row["shape"]) == [1, [2, 3]]
    assert json.loads(row["weights"]) == [3, 3]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("subset", ["e", "c", "a"]),
        ("joined", ["e", "c", "a", "f", "g"]),
        ("part", None),
        ("other_part", None),
    ],
)
def test_objects_that_torch_derives_from_datasets_are_steps(tmp_path, name, expected):
    import datasets_under_test

    items = getattr(datasets_under_test, name)
    expected = expected or [items[index].name for index in range(len(items))]
    summary, table = run(names(tmp_path, len(expected)), name, tmp_path, batch_size=2)
    assert summary.outcomes == {"ok": len(expected)}
    assert list(table["name"]) == expected


def test_the_code_of_an_object_does_not_include_torch():
    for name in ("saved", "subset", "joined", "part"):
        code = load_step(f"{MODULE}:{name}").description["code"]
        assert {key.partition(":")[0] for key in code} == {MODULE}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("subset", "has 3 items for 4 inputs. Its item i belongs to row i"),
        ("ids", "has 0 items for 4 inputs"),
        ("broken_length", "its len() raised RuntimeError: not known yet"),
        ("no_length", "is a NoLength; expected a function, a Dataset class, or an object"),
        ("NoLength", "the class NoLength has no __getitem__ and __len__"),
        ("stream", "is an IterableDataset"),
        ("Stream", "is an IterableDataset"),
    ],
)
def test_an_unsuitable_step_is_rejected_before_the_run(tmp_path, name, says):
    manifest = names(tmp_path, 4)
    with pytest.raises(StepError) as caught:
        prepare(
            make_job(manifest=str(manifest), step=f"{MODULE}:{name}", output=str(tmp_path / "out"))
        )
    assert says in str(caught.value)
    assert not (tmp_path / "out").exists()
