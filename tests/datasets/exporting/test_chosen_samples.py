"""Test which rows are exported, and the keys of samples."""

import datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness.exports import animals
from harness.jobs import run_job
from harness.published import publish_rows, texts

from batchmill import OptionError, StoreError
from batchmill.datasets.exporting.chosen_samples import choose_rows
from batchmill.datasets.exporting.run_export import export_dataset
from batchmill.datasets.reading.selection import Selection


def chosen_of(dataset, **options):
    return choose_rows(Selection(dataset=str(dataset), **options))


def inputs(dataset, **options):
    return chosen_of(dataset, **options).rows["input"].to_pylist()


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("label != 'dog'", ["1.src", "2.src", "3.src"]),  # A row without a label is not a dog.
        ("label == 'cat' and age < 2", ["1.src"]),
        ("label.isna()", ["3.src"]),
        ("label.str.startswith('d')", ["0.src"]),
        ("`my age` >= 2 or label in ['dog']", ["0.src", "2.src", "3.src"]),
        ("label.isin(['dog', 'a `b` c'])\n & age.between(0, 3) & abs(age) < 9", ["0.src"]),
        ("`it's` == 1 and label != 'it\\'s'", ["1.src"]),
        ("µV < 2 and µV.notna()", ["0.src", "1.src"]),  # Python reads another letter.
    ],
)
def test_a_condition_chooses_rows(tmp_path, where, expected):
    columns = {"label": ["dog", "cat", "eel", None]}
    columns |= {name: [0, 1, 2, 3] for name in ("age", "my age", "it's", "µV")}
    dataset = publish_rows(tmp_path / "d", texts(4), **columns)
    assert inputs(dataset, where=where) == expected


@pytest.mark.parametrize(
    "where",
    [
        *["label", "age + 1", "nope == 1", "label ==", "b = 1", "True"],
        *["label.__class__ == 1", "label._data == 1", "@pd.eval('1') == age", "open('x') == age"],
        # These methods write files.
        *["age.to_csv('x') == 1", "'`' + label.to_pickle('x') + '`' == label"],
    ],
)
def test_another_text_is_no_condition(tmp_path, monkeypatch, where):
    monkeypatch.chdir(tmp_path)
    dataset = publish_rows(tmp_path / "d", texts(1), label=["dog"], age=[1])
    with pytest.raises(OptionError, match=r"--where .*: cannot be used.*columns input, output"):
        inputs(dataset, where=where)
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_no_sample_left_is_an_error(tmp_path):
    with pytest.raises(OptionError, match=r"no sample to export\. Check --partition and --where"):
        inputs(animals(tmp_path / "d"), where="label == 'cow'")


def test_keys_stay_when_contents_change(words, tmp_path):
    def keys():
        run_job(words / "manifest.csv", "steps_under_test:copy", tmp_path / "d", times=2)
        samples = chosen_of(tmp_path / "d").samples
        return samples["key"].to_pylist(), samples["content"].to_pylist()

    before, contents = keys()
    (words / "a.txt").write_text("changed")
    after, others = keys()
    assert before == after
    assert [one == other for one, other in zip(contents, others, strict=True)].count(False) == 2
    assert len(set(before)) == 8
    assert not [key for key in before if "." in key or "/" in key]


def test_without_outputs_the_inputs_are_exported(words, tmp_path):
    run_job(words / "manifest.csv", "batchmill.steps.words:split", tmp_path / "d")
    chosen = chosen_of(tmp_path / "d")
    assert (chosen.are_inputs, chosen.root) == (True, str(words))
    assert set(chosen.samples["place"].to_pylist()) == {"a.txt", "b.txt", "c.txt", "d.txt"}
    assert all(chosen.samples["content"].to_pylist())
    assert len(set(chosen.samples["key"].to_pylist())) == len(chosen.rows)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("day == '2024-01-02'", ["1.src"]),
        ("day != '2024-01-02'", ["0.src", "2.src"]),
        ("day in ['2024-01-01']", ["0.src"]),
        ("day < '2024-01-02'", ["0.src"]),
        ("at >= '2024-01-02'", ["1.src"]),
        ("at == at.max()", ["1.src"]),
        ("id == 9007199254740992", ["0.src"]),
        ("id / 2 > 3", ["0.src", "1.src"]),
        ("at >= '2024-01-02' & day == '2024-01-02'", ["1.src"]),
        ("day == '2024-01-01' & at.notna()", ["0.src"]),
        ("code == 1152921504606846977", ["1.src"]),
        ("price == 0.1", ["0.src"]),
        ("hour == '01:00:00'", ["1.src"]),
        ("hour >= '01:00:00'", ["1.src"]),
        ("id.duplicated()", None),
    ],
)
def test_conditions_on_dates_times_and_large_numbers(tmp_path, where, expected):
    days = [datetime.datetime(2024, 1, 1), datetime.datetime(2024, 1, 2), None]
    columns = {
        "at": days,
        "day": pa.array([day and day.date() for day in days]),
        "id": [2**53, 2**53 + 1, None],
        "price": [Decimal("0.1"), Decimal("2.5"), None],
        "code": [Decimal(2**60), Decimal(2**60 + 1), None],
        "hour": [datetime.time(0), datetime.time(1), None],
    }
    dataset = publish_rows(tmp_path / "d", texts(3), **columns)
    if expected is None:
        with pytest.raises(OptionError, match="no sample to export"):
            inputs(dataset, where=where)
    else:
        assert inputs(dataset, where=where) == expected


@pytest.mark.parametrize("where", ["== '2024-01-01'", "in ['x']", ".isin(['2024-01-01'])"])
@pytest.mark.parametrize("at", [datetime.datetime(2024, 1, 1), datetime.timedelta(seconds=2)])
def test_a_time_is_not_compared_with_a_text(tmp_path, where, at):
    dataset = publish_rows(tmp_path / "d", texts(2), at=[at, None])
    with pytest.raises(OptionError, match=r"at has times, .* Use >= and <"):
        inputs(dataset, where=f"at{where}" if where[0] == "." else f"at {where}")


@pytest.mark.parametrize("zone", [datetime.UTC, None])
def test_a_text_has_a_zone_if_the_times_have_one(tmp_path, zone):
    days = [datetime.datetime(2024, 1, day, tzinfo=zone) for day in (1, 2)]
    dataset = publish_rows(tmp_path / "d", texts(2), at=days)
    same, other = ("Z", "") if zone else ("", "Z")
    assert inputs(dataset, where=f"at >= '2024-01-02T00:00{same}'") == ["1.src"]
    with pytest.raises(OptionError, match=r"Write a zone, as in .*Z', only if the column has one"):
        inputs(dataset, where=f"at >= '2024-01-02T00:00{other}'")


def test_a_version_is_exported_with_its_own_inputs_or_not_at_all(words, tmp_path):
    """Its rows describe the earlier content of the file."""

    def run():
        step = "batchmill.steps.words:split"
        run_job(words / "manifest.csv", step, tmp_path / "d", keep_versions=3)

    run()
    (words / "a.txt").write_text("changed")
    run()
    to = {"to": "webdataset"}
    export_dataset(str(tmp_path / "d"), str(tmp_path / "new"), **to)
    with pytest.raises(StoreError, match=r"a\.txt: differs from what the run recorded"):
        export_dataset(str(tmp_path / "d"), str(tmp_path / "old"), version=1, **to)


def test_two_partitions_are_not_one_split(tmp_path):
    dataset = publish_rows(tmp_path / "d", texts(2), partition=["a-b", "a_b"])
    with pytest.raises(OptionError, match="would be one split: 'a-b', 'a_b'"):
        inputs(dataset)
    unassigned = publish_rows(tmp_path / "u", texts(2), partition=["unassigned", None])
    assert len(inputs(unassigned)) == 2
    assert inputs(dataset, partitions=("a-b",)) == ["0.src"]


def test_columns_of_a_table_keep_their_names(tmp_path):
    own = {name: [1, 2] for name in ("key", "key_", "text", "text_")}
    dataset = publish_rows(tmp_path / "d", texts(2), **own)
    out = tmp_path / "out"
    shard = export_dataset(str(dataset), str(out), to="huggingface").shards[0]
    names = pq.read_schema(out / shard).names
    assert len({*names}) == len(names)
    assert {*own, "key__", "text__"} <= {*names}
