"""Test that tables depend on manifest and rows, but not on the order of execution."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from harness.jobs import run_job

from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.parts import Origin
from batchmill.core.manifest import Manifest
from batchmill.core.outcome import Outcome
from batchmill.core.storage import LocalStore
from batchmill.datasets.publishing import metadata_table as publishing
from batchmill.datasets.publishing.publish import make_tables, write_tables
from batchmill.runs.inputs.result_rows import MAX_LEVELS


def publish(ledger, manifest):
    return write_tables(ledger.store, make_tables(ledger.state(), manifest))


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger(LocalStore(tmp_path))
    ledger.create()
    return ledger


def manifest_of(names, **carried):
    count = len(names)
    inputs = pa.table({"input": names, "size": [1] * count, "mtime_ns": [1] * count})
    columns = pa.table(carried) if carried else pa.table({"": pa.nulls(count)}).select([])
    return Manifest(name="m", root=Path("/"), inputs=inputs, manifest_columns=columns)


def commit(ledger, part, **rows):
    ledger.commit(
        part,
        [
            (
                Outcome(
                    name,
                    name,
                    "ok" if text.startswith("[") else "failed",
                    1,
                    0.1,
                    1.0,
                    "h",
                    rows=text if text.startswith("[") else "[]",
                    error="" if text.startswith("[") else text,
                ),
                Origin('{"label":"old"}', "s", 1),
            )
            for name, text in rows.items()
        ],
    )


def table(tmp_path):
    return pd.read_parquet(tmp_path / "metadata.parquet").to_dict("list")


def test_rows_are_in_manifest_order_not_in_execution_order(ledger, tmp_path):
    commit(ledger, "000001-a-0", b='[{"n":3}]', c='[{"n":4},{"n":5}]')
    commit(ledger, "000001-b-0", a='[{"n":1},{"n":2}]')
    publish(ledger, manifest_of(["c", "a", "b"], label=["x", "y", "z"]))
    assert table(tmp_path) == {
        "input": ["c", "c", "a", "a", "b"],
        "label": ["x", "x", "y", "y", "z"],
        "n": [4, 5, 1, 2, 3],
    }


@pytest.mark.parametrize("chunk", [1, 2, 1000])
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", "2", "3"], pa.int64()),
        (["1", "2.5", "null"], pa.float64()),
        (["true", "null", "false"], pa.bool_()),
        (["1", '"x"', "true"], pa.string()),
        (["[1]", '{"a":1}', "null"], pa.string()),
        (["NaN", "1.5", "Infinity"], pa.float64()),
        (["123456789012345678901", "1", "2"], pa.string()),
        (["9007199254740993", "0.5", "1"], pa.string()),
        (["9223372036854775808", "0.5", "1"], pa.string()),
    ],
)
def test_the_type_of_a_column_fits_all_its_values(
    ledger, tmp_path, monkeypatch, chunk, values, expected
):
    monkeypatch.setattr(publishing, "_CHUNK", chunk)
    commit(
        ledger, "000001-a-0", **{n: f'[{{"v":{v}}}]' for n, v in zip("abc", values, strict=True)}
    )
    publish(ledger, manifest_of(["a", "b", "c"]))
    assert pq.read_schema(tmp_path / "metadata.parquet").field("v").type == expected


@pytest.mark.parametrize("chunk", [1, 2, 1000])
def test_the_texts_of_a_mixed_column_do_not_depend_on_the_chunks(
    ledger, tmp_path, monkeypatch, chunk
):
    monkeypatch.setattr(publishing, "_CHUNK", chunk)
    values = ["1.0", "2", "NaN", "-Infinity", "1e22", "true", "null", '"x"', "1e-7"]
    inputs = [f"i{number}" for number in range(len(values))]
    rows = {name: f'[{{"v":{value}}}]' for name, value in zip(inputs, values, strict=True)}
    rows["i0"] = '[{"v":1.0,"day":"now"}]'
    commit(ledger, "000001-a-0", **rows)
    day = pa.array(range(len(inputs)), pa.timestamp("s"))
    publish(ledger, manifest_of(inputs, day=day))
    published = pq.read_table(tmp_path / "metadata.parquet").to_pydict()
    assert published["v"] == [
        "1.0", "2", "NaN", "-Infinity", "1e+22", "true", None, "x", "1e-07",
    ]  # fmt: skip
    assert published["day"][:2] == ["now", "1970-01-01 00:00:01"]


@pytest.mark.parametrize("chunk", [1, 1000])
@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ("7", pa.int32(), pa.int64()),
        ("0.5", pa.float32(), pa.float64()),
        ("0.5", pa.int16(), pa.float64()),
    ],
)
def test_the_type_of_a_column_that_the_step_overrides_does_not_depend_on_the_chunks(
    ledger, tmp_path, monkeypatch, chunk, value, kind, expected
):
    monkeypatch.setattr(publishing, "_CHUNK", chunk)
    commit(ledger, "000001-a-0", a=f'[{{"v":{value}}}]', b="[{}]")
    publish(ledger, manifest_of(["a", "b"], v=pa.array([1, 2]).cast(kind)))
    assert pq.read_schema(tmp_path / "metadata.parquet").field("v").type == expected


@pytest.mark.long  # It needs 10 GB of memory.
def test_a_column_with_more_than_two_gib_of_text_is_published(ledger, tmp_path):
    text = "x" * 15 * 2**20
    names = [f"{number:03}" for number in range(150)]
    for name in names:
        commit(ledger, f"000001-{name}-0", **{name: f'[{{"text":"{text}"}},{{"n":{int(name)}}}]'})
    commit(ledger, "000002-a-0", **{"000": f'[{{"text":"{text}"}},{{"n":0}}]'})
    publish(ledger, manifest_of(names[::-1]))
    published = pq.ParquetFile(tmp_path / "metadata.parquet")
    assert published.schema_arrow.field("text").type == pa.string()
    rows = published.read(["input", "n"])
    assert rows["input"].to_pylist() == [name for name in names[::-1] for _ in range(2)]
    assert rows["n"].to_pylist()[1::2] == [int(name) for name in names[::-1]]


def test_the_rows_in_memory_are_limited_in_number_and_size(monkeypatch):
    monkeypatch.setattr(publishing, "_CHUNK", 3)
    monkeypatch.setattr(publishing, "_CHUNK_BYTES", 10)
    sizes = [2, 2, 2, 2, 20, 5, 5, 5]
    records = pa.table({"rows": ["x" * size for size in sizes]})
    parts = [
        [len(text) for text in part["rows"].to_pylist()] for part in publishing._parts(records)
    ]
    assert parts == [[2, 2, 2], [2], [20], [5, 5], [5]]
    assert list(publishing._parts(records.slice(0, 0))) == []


def test_the_manifests_types_are_kept(ledger, tmp_path):
    commit(ledger, "000001-a-0", a='[{"n":1}]')
    day = pa.array([20000], pa.date32())
    publish(ledger, manifest_of(["a"], day=day, count=pa.array([None], pa.int64())))
    schema = pq.read_schema(tmp_path / "metadata.parquet")
    assert schema.field("day").type == pa.date32()
    assert schema.field("count").type == pa.int64()
    assert schema.names == ["input", "day", "count", "n"]


def test_output_is_the_second_column(ledger, tmp_path):
    commit(ledger, "000001-a-0", a='[{"n":1,"output":"files/a/x"}]')
    publish(ledger, manifest_of(["a"], label=["x"]))
    assert list(table(tmp_path)) == ["input", "output", "label", "n"]


def test_the_steps_values_override_the_manifest(ledger, tmp_path):
    commit(ledger, "000001-a-0", a='[{"label":"mine"},{"n":1}]')
    publish(ledger, manifest_of(["a"], label=["x"]))
    assert table(tmp_path)["label"] == ["mine", "x"]


def test_only_inputs_of_the_manifest_are_in_the_tables(ledger, tmp_path):
    """A file that is too young for this manifest is not withdrawn."""
    commit(ledger, "000001-a-0", a='[{"n":1}]', z='[{"n":2}]', b='[{"n":3}]', y="no")
    publish(ledger, replace(manifest_of(["z", "y"]), too_young=pa.array(["a"])))
    assert table(tmp_path) == {"input": ["z", "a"], "n": [2, 1]}
    assert pd.read_csv(tmp_path / "failures.csv")["input"].tolist() == ["y"]


def test_failures_have_a_separate_table(ledger, tmp_path):
    commit(ledger, "000001-a-0", a='[{"n":1}]', b="ValueError")
    publish(ledger, manifest_of(["a", "b"]))
    failures = pd.read_csv(tmp_path / "failures.csv")
    assert failures[["input", "outcome", "error"]].to_numpy().tolist() == [
        ["b", "failed", "ValueError"]
    ]
    assert table(tmp_path)["input"] == ["a"]


def test_a_dataset_without_rows_has_empty_tables(ledger, tmp_path):
    publish(ledger, manifest_of(["a"], label=["x"]))
    assert table(tmp_path) == {"input": [], "label": []}
    assert (tmp_path / "failures.csv").read_text().startswith('"input","outcome"')


def test_csv_has_the_same_rows(ledger, tmp_path):
    commit(ledger, "000001-a-0", a='[{"text":"one, \\"two\\"\\nthree","n":1.5}]', b="[{}]")
    publish(ledger, manifest_of(["a", "b"]))
    frame = pd.read_csv(tmp_path / "metadata.csv")
    assert frame["text"].tolist()[0] == 'one, "two"\nthree'
    assert len(frame) == 2


def test_csv_has_no_character_that_readers_reject(ledger, tmp_path):
    commit(ledger, "000001-a-0", a=r'[{"text":"a\u0000b","other":["\u0000"]}]', b='[{"text":"c"}]')
    publish(ledger, manifest_of(["a", "b"]))
    assert b"\0" not in (tmp_path / "metadata.csv").read_bytes()
    assert pacsv.read_csv(tmp_path / "metadata.csv")["text"].to_pylist() == ["a\ufffdb", "c"]
    assert table(tmp_path)["text"] == ["a\0b", "c"]


def test_a_text_value_turns_a_date_column_into_text(ledger, tmp_path):
    commit(ledger, "000001-a-0", a='[{"day":"now"}]', b='[{"n":1}]')
    publish(ledger, manifest_of(["a", "b"], day=pa.array([1, 2], pa.timestamp("s"))))
    assert table(tmp_path)["day"] == ["now", "1970-01-01 00:00:02"]


def test_the_deepest_allowed_value_can_be_published(words, tmp_path, monkeypatch):
    """A single deeper value would make every publication of the dataset fail."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep.py").write_text(
        "def step(source):\n"
        "    value = []\n"
        f"    for _ in range({MAX_LEVELS} - (source.stem != 'a')):\n"
        "        value = [value]\n"
        "    return {'value': value}\n"
    )
    summary = run_job(words / "manifest.csv", "deep:step", "out")
    assert summary.outcomes == {"ok": 3, "failed": 1}
    assert pq.read_table("out/metadata.parquet")["input"].to_pylist() == ["b.txt", "c.txt", "d.txt"]


def test_the_work_depends_on_the_values_and_not_on_rows_times_columns(
    ledger, tmp_path, monkeypatch
):
    converted = []
    typed = publishing._typed

    def count(values):
        converted.append(len(values))
        return typed(values)

    monkeypatch.setattr(publishing, "_typed", count)
    names = [f"{number:03}" for number in range(300)]
    commit(ledger, "000001-a-0", **{name: f'[{{"k{name}":{int(name)}}}]' for name in names})
    publish(ledger, manifest_of(names))
    assert sum(converted) == 300
    published = pq.read_table(tmp_path / "metadata.parquet")
    assert published.column_names == ["input", *(f"k{name}" for name in names)]
    for row, name in enumerate(names):
        assert published[f"k{name}"].to_pylist() == [None] * row + [row] + [None] * (299 - row)


MANY = {"a": '[{"x":1,"y":2}]', "b": '[{"z":"ä","v":[1]},{"w":null,"x":3}]', "c": '[{"y":4}]'}


@pytest.mark.parametrize("chunk", [1, 2, 1000])
def test_keys_above_the_limit_of_columns_are_kept_in_one_column(
    ledger, tmp_path, monkeypatch, chunk
):
    monkeypatch.setattr(publishing, "_CHUNK", chunk)
    monkeypatch.setattr(publishing, "MAX_COLUMNS", 2)
    commit(ledger, "000001-a-0", **MANY)
    publish(ledger, manifest_of(["a", "b", "c"]))
    published = pq.read_table(tmp_path / "metadata.parquet").to_pydict()
    assert published == {
        "input": ["a", "b", "b", "c"],
        "x": [1, None, 3, None],
        "y": [2, None, None, 4],
        "more_columns": [None, '{"z": "ä", "v": [1]}', '{"w": null}', None],
    }
    assert pd.read_csv(tmp_path / "metadata.csv")["more_columns"].notna().sum() == 2


def test_outputs_and_columns_of_the_manifest_do_not_count_as_the_steps_columns(
    ledger, tmp_path, monkeypatch
):
    monkeypatch.setattr(publishing, "MAX_COLUMNS", 1)
    commit(ledger, "000001-a-0", a='[{"x":1,"label":"mine","output":"files/a/1","y":2}]')
    publish(ledger, manifest_of(["a"], label=["x"]))
    assert table(tmp_path) == {
        "input": ["a"],
        "output": ["files/a/1"],
        "label": ["mine"],
        "x": [1],
        "more_columns": ['{"y": 2}'],
    }


def test_the_column_of_other_keys_replaces_no_column(ledger, tmp_path, monkeypatch):
    monkeypatch.setattr(publishing, "MAX_COLUMNS", 1)
    commit(ledger, "000001-a-0", a='[{"more_columns":1,"y":2}]')
    publish(ledger, manifest_of(["a"]))
    assert table(tmp_path) == {"input": ["a"], "more_columns": [1], "more_columns_": ['{"y": 2}']}


@pytest.mark.parametrize("chunk", [1, 2, 1000])
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["null", "[]", "[[1]]"], pa.list_(pa.list_(pa.float32()))),
        (["[]", "[[]]", "[[1],[2,3]]"], pa.list_(pa.list_(pa.float32()))),
        (["[]", "null", "[]"], pa.list_(pa.float32())),
        (["[1,2]", "[3,4]", "[5,6]"], pa.list_(pa.float32(), 2)),
        (["[[1,2]]", "[[3,4]]", "[[5,6]]"], pa.fixed_shape_tensor(pa.float32(), [1, 2])),
        (["[1,2]", "[3,4]", "[5]"], pa.list_(pa.float32())),
    ],
)
def test_the_type_of_declared_lists_does_not_depend_on_the_chunks(
    ledger, tmp_path, monkeypatch, chunk, values, expected
):
    monkeypatch.setattr(publishing, "_CHUNK", chunk)
    rows = {name: f'[{{"v":{value}}}]' for name, value in zip("abc", values, strict=True)}
    commit(ledger, "000001-a-0", **rows)
    made = make_tables(ledger.state(), manifest_of(["a", "b", "c"]), {"v": "list:float32"})
    assert made.metadata.schema.field("v").type == expected
    if not isinstance(expected, pa.FixedShapeTensorType):
        assert made.metadata["v"].to_pylist() == [json.loads(value) for value in values]
