"""Test the fields of samples (id, file, label and columns), and rejected datasets."""

import copy
import math
import pickle
import shutil
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from harness.jobs import run_job
from harness.object_store import upload
from harness.published import publish_rows, publish_table, texts
from torch.utils.data import DataLoader

from batchmill import LedgerError, OptionError, StoreError, metadata, open_dataset
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.snapshots import Snapshots
from batchmill.core.storage import LocalStore
from batchmill.datasets.reading import published


@pytest.fixture
def animals(tmp_path):
    """Return a dataset of six texts with labels and partitions."""
    return publish_rows(
        tmp_path / "animals",
        texts(6),
        label=["dog", "cat", "eel", "cat", "dog", "ant"],
        partition=["train", "train", "train", "test", "test", None],
        age=[1, 2, None, 4, 5, 6],
        nick=["a", None, "c", "d", "e", "f"],
    )


def test_the_results_of_a_run_are_read_back(words, tmp_path):
    table = pd.DataFrame({"input": ["a.txt", "b.txt"], "label": ["x", "y"]})
    table.to_csv(words / "manifest.csv", index=False)
    run_job(words / "manifest.csv", "steps_under_test:copy", tmp_path / "out", times=2)
    dataset = open_dataset(tmp_path / "out", columns=["copy", "input"])
    rows = pd.read_parquet(tmp_path / "out" / "metadata.parquet")
    assert [sample._asdict() for sample in dataset] == [
        {
            "id": row.output,
            "data": (tmp_path / "out" / row.output).read_text(),
            "label": ["x", "y"].index(row.label),
            "copy": row.copy,
            "input": row.input,
        }
        for row in rows.itertuples(name="Row")
    ]
    assert len(dataset) == 4
    assert type(dataset[0]).__name__ == "Sample"


def test_classes_cover_the_whole_dataset(animals):
    train, test = (open_dataset(animals, partition=name) for name in ("train", "test"))
    assert train.classes == test.classes == ["ant", "cat", "dog", "eel"]
    assert test.class_to_idx == {"ant": 0, "cat": 1, "dog": 2, "eel": 3}
    assert [sample.label for sample in train] == [2, 1, 3]
    assert [sample.label for sample in test] == [1, 2]


@pytest.mark.parametrize(
    ("labels", "expected"), [([3, 1], [3, 1]), ([0.5, 2.0], [0.5, 2.0]), ([True, False], [1, 0])]
)
def test_number_labels_are_not_changed(tmp_path, labels, expected):
    dataset = open_dataset(publish_rows(tmp_path / "d", texts(2), label=labels))
    found = [sample.label for sample in dataset]
    assert (found, list(map(type, found))) == (expected, list(map(type, expected)))
    assert dataset.classes == []
    assert dataset.labels == dict(zip(["files/0.txt", "files/1.txt"], labels, strict=True))


def test_without_labels_samples_have_no_label_field(tmp_path):
    dataset = open_dataset(publish_rows(tmp_path / "d", texts(2)))
    assert dataset[1] == ("files/1.txt", "text 1")
    assert dataset[1]._fields == ("id", "data")
    assert (dataset.classes, dataset.class_to_idx) == ([], {})
    with pytest.raises(OptionError, match="no column 'label'"):
        _ = dataset.labels


@pytest.mark.parametrize("missing", [None, ""])
def test_missing_labels_are_reported_when_the_dataset_is_opened(tmp_path, missing):
    labels = ["x", *[missing] * 7, "y"]
    partition = ["labelled", *["other"] * 7, "labelled"]
    folder = publish_rows(tmp_path / "d", texts(9), label=labels, partition=partition)
    with pytest.raises(OptionError, match=r"7 of 9 samples have no label \(files/1.txt, .*\.\.\."):
        open_dataset(folder)
    with pytest.raises(OptionError, match=r"7 of 7 samples have no label \(files/1\.txt, files/2"):
        open_dataset(folder, partition="other")
    assert [sample.label for sample in open_dataset(folder, partition="labelled")] == [0, 1]
    assert [sample.label for sample in open_dataset(folder, columns=["label"])] == [
        label or "" for label in labels
    ]
    assert open_dataset(folder, partition="labelled").labels == {
        "files/0.txt": "x",
        "files/8.txt": "y",
    }


def test_a_label_that_is_not_a_number_is_missing(tmp_path):
    folder = publish_rows(tmp_path / "d", texts(2), label=[1.0, math.nan])
    with pytest.raises(OptionError, match=r"1 of 2 samples have no label \(files/1.txt\)"):
        open_dataset(folder)


def test_columns_can_always_be_collated(animals):
    dataset = open_dataset(animals, columns=["nick", "age"])
    (batch,) = DataLoader(dataset, batch_size=6)
    assert batch.nick == ("a", "", "c", "d", "e", "f")
    assert batch.age.isnan().tolist() == [False, False, True, False, False, False]
    assert batch.label.tolist() == [2, 1, 3, 1, 2, 0]
    assert type(batch) is type(dataset[0])


def test_columns_of_other_types_become_text(tmp_path):
    days = pd.to_datetime(["2020-01-02", "2021-03-04"]).date
    folder = publish_rows(tmp_path / "d", texts(2), day=days, flag=[True, None], whole=[1, 2])
    samples = list(open_dataset(folder, columns=["day", "flag", "whole"]))
    assert [sample.day for sample in samples] == ["2020-01-02", "2021-03-04"]
    assert samples[0].flag == 1
    assert math.isnan(samples[1].flag)
    assert samples[1].whole == 2


def test_rows_without_a_label_can_be_left_out(tmp_path):
    labels = ["dog", None, "cat", ""]
    partition = ["train", "train", "test", "train"]
    dataset = publish_rows(tmp_path / "some", texts(4), label=labels, partition=partition)
    samples = open_dataset(dataset, only_labelled=True)
    assert [samples.classes[sample.label] for sample in samples] == ["dog", "cat"]
    assert samples.frame["label"].tolist() == ["dog", "cat"]
    train = open_dataset(dataset, partition="train", only_labelled=True)
    assert [sample.id for sample in train] == [samples[0].id]
    assert len(pickle.loads(pickle.dumps(train))) == 1
    with pytest.raises(OptionError, match="has no column 'label'"):
        open_dataset(publish_rows(tmp_path / "none", texts(2)), only_labelled=True)


def test_arrays_and_lists_can_be_labels(tmp_path):
    kind = pa.fixed_shape_tensor(pa.int64(), [2, 2])
    tensors = kind.wrap_array(pa.array([[0, 1, 2, 3], [4, 5, 6, 7]], kind.storage_type))
    labels = [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    samples = open_dataset(publish_rows(tmp_path / "a", texts(2), label=tensors))
    assert [sample.label.tolist() for sample in samples] == labels
    assert [*samples.labels.values()] == labels
    folder = publish_rows(tmp_path / "l", texts(3), label=[["dog"], None, ["cat", "dog"]])
    samples = open_dataset(folder, only_labelled=True)
    assert samples.classes == ['["cat", "dog"]', '["dog"]']
    assert [sample.label for sample in samples] == [1, 0]
    with pytest.raises(OptionError, match="1 of 3 samples have no label"):
        open_dataset(folder)


def test_a_condition_chooses_samples_and_keeps_the_classes(tmp_path):
    labels, ages = ["dog", "cat", None, "dog"], [1, 2, 3, 4]
    folder = publish_rows(tmp_path / "d", texts(4), **{"label": labels, "my age": ages})
    chosen = open_dataset(folder, where="label == 'dog' and `my age` > 1 and abs(`my age`) < 9")
    assert [(sample.data, sample.label) for sample in chosen] == [("text 3", 1)]
    assert chosen.classes == ["cat", "dog"]
    assert chosen.frame["my age"].tolist() == [4]
    again = pickle.loads(pickle.dumps(chosen))
    assert [sample.id for sample in again] == ["files/3.txt"]
    assert len(open_dataset(folder, where="label.notna()", partition=None)) == 3


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("label = 'dog'", r"where .* is not a condition \(invalid syntax"),
        ("label.to_csv('x') == 1", r"where .* is not a condition \(to_csv\(\) cannot be called"),
        ("nope == 1", r"has no column 'nope'\. It has 'input', 'output', 'label'"),
        ("label", "where 'label': cannot be used"),
        ("label == 'cow'", "no sample to open. Check the selection"),
    ],
)
def test_a_condition_that_chooses_nothing_is_rejected(tmp_path, where, message):
    folder = publish_rows(tmp_path / "d", texts(2), label=["dog", "cat"])
    with pytest.raises(OptionError, match=message):
        open_dataset(folder, where=where)


def test_a_dataset_without_samples_names_the_failures_command(tmp_path):
    dataset = publish_rows(tmp_path / "some", texts(2), label=[None, None])
    with pytest.raises(OptionError, match=r"no sample to open.*batchmill failures"):
        open_dataset(dataset, only_labelled=True)


def test_partitions_and_labels_as_dictionaries(animals):
    ids = [f"files/{number}.txt" for number in range(6)]
    dataset = open_dataset(animals, partition="train")
    assert dataset.partition == {"test": ids[3:5], "train": ids[:3]}
    labels = ["dog", "cat", "eel", "cat", "dog", "ant"]
    assert dataset.labels == dict(zip(ids, labels, strict=True))
    assert len(open_dataset(animals)) == 6
    assert len(open_dataset(animals, partition=["train", "test"])) == 5


def test_the_rows_of_the_samples(animals):
    dataset = open_dataset(animals, partition="test")
    assert dataset.frame.index.tolist() == [sample.id for sample in dataset]
    assert dataset.frame["nick"].tolist() == ["d", "e"]
    assert "input" in dataset.frame


def test_tables_keep_large_whole_numbers_next_to_missing_ones(tmp_path):
    folder = publish_rows(tmp_path / "d", texts(3), number=[2**60 + 1, None, 5], small=[1, None, 2])
    for table in (metadata(folder), open_dataset(folder).frame):
        assert table["number"].dropna().tolist() == [2**60 + 1, 5]
        assert table["small"].dtype == float


def test_an_unknown_partition_is_rejected(animals, tmp_path):
    with pytest.raises(OptionError, match=r"no partition 'valid'\. It has 'test', 'train'"):
        open_dataset(animals, partition=["train", "valid"])
    with pytest.raises(OptionError, match="no partition is given"):
        open_dataset(animals, partition=[])
    plain = publish_rows(tmp_path / "d", texts(1))
    with pytest.raises(OptionError, match=r"no column 'partition'\. Add it to the manifest"):
        open_dataset(plain, partition="train")
    with pytest.raises(OptionError, match="no column 'partition'"):
        _ = open_dataset(plain).partition


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["agee"], "no column 'agee'. It has 'input', 'output', 'label', 'partition', 'age'"),
        (["a b"], "cannot be read as sample.a b"),
        (["class"], "cannot be read as sample.class"),
        (["data"], "two fields 'data'"),
        (["age", "age"], "two fields 'age'"),
    ],
)
def test_columns_that_cannot_be_fields_are_rejected(animals, columns, words):
    extra = {"a b": [1] * 6, "class": [1] * 6, "data": [1] * 6}
    frame = pd.read_parquet(animals / "metadata.parquet").assign(**extra)
    publish_table(animals, pa.Table.from_pandas(frame))
    with pytest.raises(OptionError, match=words):
        open_dataset(animals, columns=columns)


def test_a_field_has_the_name_of_its_column(tmp_path):
    """Python reads some letters as others, such as the sign of micro."""
    columns = {"µV": [1, 2]}
    folder = publish_rows(tmp_path / "d", texts(2), **columns)
    dataset = open_dataset(folder, columns=["µV"], where="µV > 1")
    assert [sample.µV for sample in dataset] == [2]
    assert pickle.loads(pickle.dumps(dataset[0])).µV == 2


def test_rows_of_one_file_have_different_ids(tmp_path):
    names = ["files/a.txt", "files/b.txt", "files/a.txt"]
    folder = publish_rows(tmp_path / "d", {"a.txt": "A", "b.txt": "B", "x.txt": ""}, output=names)
    dataset = open_dataset(folder)
    assert [sample.id for sample in dataset] == ["files/a.txt#0", "files/b.txt", "files/a.txt#1"]
    assert [sample.data for sample in dataset] == ["A", "B", "A"]
    assert dataset.frame.index.tolist() == ["files/a.txt#0", "files/b.txt", "files/a.txt#1"]


def test_ids_are_unique_for_all_file_names(tmp_path):
    names = ["files/a", "files/a", "files/a#0", "files/a#1#0"]
    folder = publish_rows(tmp_path / "d", output=names)
    ids = [sample.id for sample in open_dataset(folder, load=str)]
    assert ids == ["files/a#0", "files/a#1", "files/a#0#0", "files/a#1#0#0"]


def test_rows_without_a_file_are_left_out(tmp_path):
    names = ["files/0.txt", None, "", "files/1.txt"]
    dataset = open_dataset(
        publish_rows(tmp_path / "d", output=names, label=["a", "", "", "b"]), load=str
    )
    assert [sample.id for sample in dataset] == ["files/0.txt", "files/1.txt"]
    assert len(dataset.frame) == 2


def test_without_output_files_the_inputs_are_opened(words, tmp_path):
    run_job(words / "manifest.csv", "batchmill.steps.words:split", tmp_path / "out", num_chars=3)
    dataset = open_dataset(tmp_path / "out", columns=["part"])
    assert dataset[0] == ("a.txt#0", "simple", "sim")
    assert len({sample.id for sample in dataset}) == len(dataset)
    shutil.rmtree(words)
    with pytest.raises(StoreError, match=r"a\.txt: is missing"):
        dataset[0]
    with pytest.raises(OptionError, match=r"wrote no files, so the samples are its inputs.*a\.txt"):
        open_dataset(tmp_path / "out")


def test_a_missing_file_is_reported_for_any_loader(tmp_path):
    folder = publish_rows(tmp_path / "d", texts(1))
    datasets = [open_dataset(folder, load=load) for load in ("text", Path.read_text)]
    (folder / "files" / "0.txt").unlink()
    for dataset in datasets:
        with pytest.raises(StoreError, match=r"files/0\.txt: is missing"):
            dataset[0]
    (folder / "files" / "0.txt").write_text("")
    broken = open_dataset(folder, load=lambda _: Path("/nowhere").read_text())
    with pytest.raises(FileNotFoundError, match="/nowhere"):
        broken[0]


def test_the_allowlist_applies_to_inputs(words, tmp_path, monkeypatch):
    run_job(words / "manifest.csv", "batchmill.steps.words:split", tmp_path / "out")
    monkeypatch.setenv("BATCHMILL_ALLOWED_INPUTS", str(tmp_path / "elsewhere"))
    with pytest.raises(OptionError, match="BATCHMILL_ALLOWED_INPUTS"):
        _ = open_dataset(tmp_path / "out")[0]


def test_a_folder_without_a_dataset_or_table_is_rejected(tmp_path):
    with pytest.raises(OptionError, match="is not a dataset"):
        open_dataset(tmp_path)
    Ledger(LocalStore(tmp_path)).create()
    with pytest.raises(OptionError, match=r"no metadata\.parquet yet"):
        open_dataset(tmp_path)


def test_an_empty_table_is_rejected(tmp_path):
    folder = publish_rows(tmp_path / "d", output=[], label=[])
    with pytest.raises(OptionError, match="has no sample to open"):
        open_dataset(folder)


def test_a_table_with_files_outside_of_the_dataset_is_rejected(tmp_path):
    for name in ("/etc/passwd", "files/../../secret.txt", "metadata.csv"):
        folder = publish_rows(tmp_path / name.replace("/", "-"), output=["files/a.txt", name])
        with pytest.raises(OptionError, match="which is not below files/"):
            open_dataset(folder)


def test_a_changed_table_is_rejected_after_opening(animals):
    dataset = open_dataset(animals)
    assert dataset.labels
    frame = pd.read_parquet(animals / "metadata.parquet")
    publish_table(animals, pa.Table.from_pandas(frame.iloc[::-1]))
    assert dataset[0].data == "text 0"
    for ask in (lambda: dataset.labels, lambda: dataset.partition, lambda: dataset.frame):
        with pytest.raises(OptionError, match="does not exist any more"):
            ask()


def test_the_table_of_the_version_is_read_also_if_its_copy_was_changed(words, tmp_path):
    dataset = tmp_path / "out"
    run_job(words / "manifest.csv", "steps_under_test:copy", dataset)
    copy = dataset / "metadata.parquet"
    whole = copy.read_bytes()
    copy.write_bytes(b"damaged")
    assert len(open_dataset(dataset)) == 4
    run_job(words / "manifest.csv", "steps_under_test:copy", dataset)
    assert copy.read_bytes() == whole


def test_a_damaged_table_of_a_version_is_rejected(words, tmp_path):
    dataset = tmp_path / "out"
    run_job(words / "manifest.csv", "steps_under_test:copy", dataset)
    table = dataset / ".batchmill/snapshots/000001-table.parquet"
    table.write_bytes(table.read_bytes().replace(b"a.txt", b"b.txt"))
    with pytest.raises(LedgerError, match=r"table\.parquet: is damaged"):
        open_dataset(dataset)


def test_a_version_that_a_run_removes_during_the_opening_is_read_again(
    words, tmp_path, monkeypatch
):
    dataset = tmp_path / "out"
    run_job(words / "manifest.csv", "steps_under_test:copy", dataset)
    real, found = Snapshots.last_version, []

    def find_then_publish(snapshots):
        found.append(real(snapshots))
        if len(found) == 1:
            again = {"times": 2, "keep_versions": 0}
            monkeypatch.setattr(Snapshots, "last_version", real)
            run_job(words / "manifest.csv", "steps_under_test:copy", dataset, **again)
        return found[-1]

    monkeypatch.setattr(Snapshots, "last_version", find_then_publish)
    assert published.read_published(str(dataset)).version.number == 2


def test_samples_are_a_sequence(animals):
    dataset = open_dataset(animals)
    assert (
        dataset[-1].data == dataset[torch.tensor(5)].data == dataset[np.int64(5)].data == "text 5"
    )
    for index in (6, -7):
        with pytest.raises(IndexError):
            dataset[index]
    assert repr(dataset) == f"SampleDataset({animals}, 6 samples)"


def test_a_relative_path_is_resolved_when_opened(animals, monkeypatch):
    monkeypatch.chdir(animals.parent)
    dataset = open_dataset("animals")
    monkeypatch.chdir("/")
    assert dataset[0].data == "text 0"
    assert dataset.labels


def test_a_transform_receives_the_data(animals):
    assert open_dataset(animals, transform=len)[0].data == 6


def test_errors_of_a_transform_name_the_sample(animals):
    with pytest.raises(ValueError, match="invalid literal") as caught:
        open_dataset(animals, transform=int)[3]
    assert "sample 3" in caught.value.__notes__[0]
    assert "files/3.txt" in caught.value.__notes__[0]


def test_samples_are_copied_and_pickled(animals):
    sample = open_dataset(animals, columns=["age"])[0]
    for twin in (pickle.loads(pickle.dumps(sample)), copy.deepcopy(sample), copy.copy(sample)):
        assert (twin, type(twin)) == (sample, type(sample))


def test_a_dataset_in_a_bucket(animals, bucket):
    upload(animals, f"{bucket}/animals")
    dataset = open_dataset(f"{bucket}/animals", partition="train", load=where_it_is)
    batches = list(DataLoader(dataset, batch_size=2, num_workers=2))
    assert [text for batch in batches for text in batch.data[0]] == ["text 0", "text 1", "text 2"]
    assert [label for batch in batches for label in batch.label.tolist()] == [2, 1, 3]
    paths = [Path(path) for batch in batches for path in batch.data[1]]
    assert [path.name for path in paths] == ["0.txt", "1.txt", "2.txt"]
    assert not any(path.exists() for path in paths)
    assert len(dataset.labels) == 6


def test_the_files_of_a_batch_are_fetched_at_the_same_time(animals, bucket, proxied):
    upload(animals, f"{bucket}/animals")
    together = threading.Barrier(3)

    def wait_for_others(request):
        if request.method == "GET" and request.path.endswith(".txt"):
            together.wait(30)

    dataset = open_dataset(f"{bucket}/animals", partition="train", load=where_it_is)
    with proxied(wait_for_others) as proxy:
        (batch,) = DataLoader(dataset, batch_size=3, num_workers=1)
    assert list(batch.data[0]) == ["text 0", "text 1", "text 2"]
    assert Counter(request.method for request in proxy.requests) == {"GET": 3}
    assert "obstore" not in sys.modules


def test_a_missing_file_of_a_batch_is_reported(animals, bucket):
    (animals / "files" / "1.txt").unlink()
    upload(animals, f"{bucket}/animals")
    dataset = open_dataset(f"{bucket}/animals", partition="train", load=where_it_is)
    with pytest.raises(RuntimeError, match=r"1\.txt: there is no such file"):
        list(DataLoader(dataset, batch_size=3, num_workers=1))


def where_it_is(path):
    return path.read_text(), str(path)
