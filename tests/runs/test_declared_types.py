"""The types of columns: declared by the step, or guessed and reported."""

import datetime
import json
import logging

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness.jobs import run_job
from torch.utils.data import DataLoader

from batchmill import load_manifest, open_dataset
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.storage import LocalStore
from batchmill.datasets.exporting.run_export import export_dataset
from batchmill.datasets.maintenance.verify import verify

STEP = """
from typing import TypedDict
import numpy as np
import numpy.typing as npt

class Row(TypedDict):
    output: str
    number: float
    vector: npt.NDArray[np.float32]
    picture: npt.NDArray[np.uint8]
    words: list[str]

def declare(source, out, long="") -> Row:
    value = int(source.read_text())
    (out / "a.txt").write_text("a")
    return {
        "output": "a.txt",
        "number": value,
        "vector": np.full(4 if source.stem == long else 3, value, np.float32),
        "picture": np.full((2, 3), value, np.uint8),
        "words": ["a"] * value,
    }

def wrong(source, out) -> Row:
    row = declare(source, out)
    return row | {"number": "many"} if source.stem == "2" else row

def replace_one(source):
    return {"day": "text"} if source.stem == "0" else {}

def guess(source):
    value = int(source.read_text())
    return {"mixed": value if value < 2 else str(value), "fine": value if value < 2 else 0.5}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "declaring.py").write_text(STEP)
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(str(number))
    (tmp_path / "m.csv").write_text("input\n0.txt\n1.txt\n2.txt\n3.txt\n")
    return tmp_path


def run(folder, step, **params):
    seen = []
    run_job(folder / "m.csv", f"declaring:{step}", folder / "out", seen=seen, **params)
    return {outcome.input: outcome for outcome in seen}


def schema(folder):
    return {field.name: field.type for field in pq.read_schema(folder / "out/metadata.parquet")}


def test_declared_columns_have_their_types(folder):
    run(folder, "declare")
    found = schema(folder)
    assert found["number"] == pa.float64()
    assert found["vector"] == pa.list_(pa.float32(), 3)
    assert found["picture"] == pa.fixed_shape_tensor(pa.uint8(), [2, 3])
    assert found["words"] == pa.list_(pa.string())
    table = pd.read_csv(folder / "out" / "metadata.csv")
    assert table["vector"].to_list()[1] == "[1.0, 1.0, 1.0]"
    assert table["picture"].to_list()[1] == "[[1, 1, 1], [1, 1, 1]]"
    assert table["words"].to_list()[3] == '["a", "a", "a"]'
    assert not list(verify(Ledger(LocalStore(folder / "out"))))
    assert run(folder, "declare") == {}


def test_a_loader_collates_vectors_and_tensors(folder):
    run(folder, "declare")
    samples = open_dataset(folder / "out", columns=["vector", "picture", "words"])
    (batch,) = DataLoader(samples, batch_size=4, num_workers=1)
    assert batch.vector.tolist() == [[float(n)] * 3 for n in range(4)]
    assert tuple(batch.picture.shape) == (4, 2, 3)
    assert batch.words[1] == '["a"]'
    assert samples.frame["vector"].iloc[2].tolist() == [2.0] * 3


def test_vectors_of_several_lengths_stay_lists(folder):
    run(folder, "declare", long="1")
    assert schema(folder)["vector"] == pa.list_(pa.float32())
    table = pq.read_table(folder / "out/metadata.parquet")
    assert list(map(len, table["vector"].to_pylist())) == [3, 4, 3, 3]


def test_a_row_with_another_type_fails_its_input(folder):
    seen = run(folder, "wrong")
    assert {name: outcome.kind for name, outcome in seen.items()} == {
        "0.txt": "ok",
        "1.txt": "ok",
        "2.txt": "failed",
        "3.txt": "ok",
    }
    assert seen["2.txt"].error == "RowTypeError"
    assert "row 0: 'number' is 'many'; Row declares a valid number" in seen["2.txt"].message
    assert seen["2.txt"].traceback == ""  # It would have no frame of the step.
    # Nothing of the failed input is left in the dataset.
    assert not list(verify(Ledger(LocalStore(folder / "out"))))


def test_a_column_with_several_types_is_reported(folder, caplog):
    with caplog.at_level(logging.WARNING):
        run(folder, "guess")
    (warning,) = [record.getMessage() for record in caplog.records if "column" in record.msg]
    assert warning.startswith("The column mixed is text, because its values have several types: ")
    assert "a number in 0.txt" in warning
    assert "text in 2.txt" in warning
    assert schema(folder)["mixed"] == pa.string()
    assert schema(folder)["fine"] == pa.float64()


def test_declared_types_do_not_depend_on_the_values(folder):
    for number in range(4):
        (folder / f"{number}.txt").write_text("0")
    run(folder, "declare")
    assert schema(folder)["number"] == pa.float64()
    assert np.array_equal(open_dataset(folder / "out", columns=["vector"])[0].vector, np.zeros(3))


def test_an_export_has_lists_for_tensors(folder):
    run(folder, "declare")
    export_dataset(str(folder / "out"), str(folder / "hf"), to="huggingface")
    table = pq.read_table(*(folder / "hf" / "data").glob("*.parquet"))
    assert table["picture"].to_pylist()[1] == [[1, 1, 1], [1, 1, 1]]
    assert table["vector"].to_pylist()[1] == [1.0, 1.0, 1.0]


def test_a_tensor_of_a_dataset_keeps_its_shape_in_the_next_dataset(folder):
    run(folder, "declare")
    found = load_manifest(folder / "out").manifest_columns["picture"].to_pylist()
    assert json.loads(found[1]) == [[1, 1, 1], [1, 1, 1]]


def test_a_date_of_the_manifest_in_a_column_of_texts_has_no_quotes(folder):
    days = [datetime.date(2024, 1, day) for day in (1, 2)]
    frame = pd.DataFrame({"input": ["0.txt", "1.txt"], "day": days})
    frame.to_parquet(folder / "days.parquet")
    run_job(folder / "days.parquet", "declaring:replace_one", folder / "out")
    assert pd.read_parquet(folder / "out/metadata.parquet")["day"].to_list() == [
        "text",
        "2024-01-02",
    ]
