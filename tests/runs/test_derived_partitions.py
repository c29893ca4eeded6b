"""Partitions of datasets whose manifest is a dataset: rows made from one input stay together."""

from os.path import abspath as absolute
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from harness.jobs import job_of, run_job
from harness.published import publish_table

from batchmill import ManifestError
from batchmill.core.ledger.open import open_ledger
from batchmill.core.partitions.record import last_assignment
from batchmill.core.planning.prepare import prepare
from batchmill.datasets.maintenance.verify import verify

pytestmark = pytest.mark.slow

STEP = "steps_under_test:copy"
SHARES = {"partition": "train=0.6,validation=0.2,test=0.2"}
BY_SPEAKER = SHARES | {"group_by": "who"}


@pytest.fixture(autouse=True)
def recordings(tmp_path, monkeypatch):
    """Two recordings of each of 12 speakers."""
    monkeypatch.chdir(tmp_path)
    rows = []
    for number in range(24):
        (tmp_path / f"{number:02d}").write_text(f"recording {number}")
        rows.append({"input": f"{number:02d}", "who": f"speaker {number // 2}"})
    write(rows)
    return rows


def write(rows):
    pd.DataFrame(rows).to_csv("m.csv", index=False)


def run(manifest, output, **options):
    """Make two clips of each input."""
    return run_job(manifest, STEP, output, options=options, times=2)


def table(dataset):
    frame = pd.read_parquet(f"{dataset}/metadata.parquet")
    if "partition" in frame:
        assert frame["partition"].notna().all()
    return frame


def partition_of_each(column, dataset):
    """The partition of each value in a column. It must be only one."""
    pairs = table(dataset)[[column, "partition"]].drop_duplicates()
    assert pairs[column].is_unique
    return dict(pairs.itertuples(index=False))


def partition_of_recorded(dataset):
    """The recorded partition of each group, which also has the withdrawn inputs."""
    rows = last_assignment(open_ledger(dataset)).rows.to_pandas().dropna(subset="input")
    assert len(rows) == 48
    pairs = rows[["group", "partition"]].drop_duplicates()
    assert pairs["group"].is_unique
    return dict(pairs.itertuples(index=False))


def found(dataset):
    return [(one.kind, one.message) for one in verify(open_ledger(dataset))]


def test_rows_made_from_the_same_input_are_one_group():
    run("m.csv", "clips")
    run("clips", "parts", **SHARES)
    parts = partition_of_each("made_from", "parts")
    assert set(parts.values()) == {"train", "validation", "test"}
    run("m.csv", "clips", **SHARES)
    assert parts == partition_of_each("input", "clips"), "the same hash as for the input itself"
    assert found("parts") == []


def test_the_first_input_of_a_longer_chain_is_the_group():
    for manifest, output in (("m.csv", "1"), ("1", "2"), ("2", "3")):
        run(manifest, output)
    run("3", "4", **SHARES)
    assert "original_input" not in table("2")
    parts = partition_of_each("original_input", "4")
    assert parts.keys() == {f"{number:02d}" for number in range(24)}
    assert set(parts.values()) == {"train", "validation", "test"}
    run("m.csv", "1", **SHARES)
    assert parts == partition_of_each("input", "1")


def test_groups_are_those_of_the_earlier_dataset():
    run("m.csv", "clips", **BY_SPEAKER)
    speakers = partition_of_each("who", "clips")
    run("clips", "parts", **SHARES)
    assert partition_of_each("who", "parts") == speakers
    # The table of the earlier dataset names no partition now, but its ledger has the groups.
    run("m.csv", "clips")
    assert "partition" not in table("clips")
    run("clips", "parts", **SHARES, seed=1)
    assert len(partition_of_each("who", "parts")) == 12
    assert found("parts") == []


def test_a_withdrawn_recording_stays_with_its_speaker_in_derived_datasets(recordings):
    run("m.csv", "clips", **BY_SPEAKER)
    speakers = partition_of_each("who", "clips")
    write(recordings[1::2])
    for options in (BY_SPEAKER, BY_SPEAKER | {"seed": 1}):
        run("m.csv", "clips", **options)
        run("clips", "parts", **SHARES)
        assert partition_of_each("who", "parts") == partition_of_each("who", "clips")
        assert found("parts") == []
    assert partition_of_each("who", "parts") != speakers


def test_withdrawn_rows_of_a_derived_dataset_stay_with_their_group():
    run("m.csv", "clips")
    run("clips", "parts")
    for seed in (1, 2):
        run("clips", "parts", **SHARES, seed=seed, pattern="*/0.txt")
        assert len(table("parts")) == 48
        assert len(partition_of_recorded("parts")) == 24, "one group for each recording"
    run("m.csv", "clips", **BY_SPEAKER)
    run("m.csv", "clips")
    run("clips", "parts", **SHARES, seed=3, pattern="*/0.txt")
    assert len(partition_of_recorded("parts")) == 12, "new groups of the earlier dataset apply"
    assert found("parts") == []


def test_a_version_of_a_dataset_does_not_get_the_groups_of_a_later_one(recordings):
    write([row | {"day": number % 5} for number, row in enumerate(recordings)])
    run("m.csv", "clips", **BY_SPEAKER)
    first = partition_of_each("input", "clips")
    run("m.csv", "clips", **SHARES, group_by="day", seed=1)
    run("clips@1", "parts", **SHARES)
    assert partition_of_each("made_from", "parts") == first
    assert found("parts") == []


def test_a_group_column_replaces_the_inherited_groups():
    run("m.csv", "clips")
    run("clips", "parts", **BY_SPEAKER)
    assert len(partition_of_each("who", "parts")) == 12


def test_an_inherited_partition_must_be_one_of_the_options():
    run("m.csv", "clips", **SHARES)
    with pytest.raises(ManifestError, match=r"output \d+: partition 'validation' is not in --part"):
        prepare(job_of("clips", STEP, "parts", partition="train=0.5,test=0.5"))


# Verification


def other_than(partition):
    return "test" if partition == "train" else "train"


def move(dataset, row):
    """Put one row into another partition, without batchmill. Return the row as it was."""
    frame = table(dataset)
    before = frame.loc[row].copy()
    frame.loc[row, "partition"] = other_than(before["partition"])
    frame.to_parquet(f"{dataset}/metadata.parquet", index=False)
    return before


def leaks(dataset):
    return [message for kind, message in found(dataset) if kind == "leak"]


def test_verify_finds_a_first_input_in_several_partitions():
    for manifest, output in (("m.csv", "1"), ("1", "2")):
        run(manifest, output)
    # Each input is a group of its own here, so the ledger of the dataset agrees with its table.
    frame = table("2").assign(own=lambda rows: rows["output"])
    publish_table("2", pa.Table.from_pandas(frame, preserve_index=False), run=2)
    run("2", "3", **SHARES, group_by="own")
    first = table("3").groupby("original_input")["partition"].nunique()
    assert [message.partition("'")[2].partition("'")[0] for message in leaks("3")] == list(
        first[first > 1].index
    )
    assert all(message.startswith("input '") for message in leaks("3"))


def test_verify_reports_a_torn_group_once():
    run("m.csv", "clips", **BY_SPEAKER)
    run("clips", "parts", **SHARES)
    before = move("parts", 0)
    where, other = before["partition"], other_than(before["partition"])
    torn, assigned, source = leaks("parts")
    assert torn.startswith("group 'speaker 0' is in several partitions: ")
    assert assigned == f"{before['input']} is in {other}, but was assigned to {where}"
    assert source == f"{before['input']} is in {other}, but 00 is in {where} in {absolute('clips')}"


def test_verify_finds_rows_that_differ_from_the_earlier_dataset():
    run("m.csv", "clips", **SHARES)
    for options in (SHARES, {}):  # Without the option, the column is only copied.
        run("clips", "parts", **options)
        assert found("parts") == []
        run("m.csv", "clips", **SHARES, seed=1)
        assert leaks("parts")
        assert all(message.endswith(f"in {absolute('clips')}") for message in leaks("parts"))
        run("clips", "parts", **options)
        assert found("parts") == []
        run("m.csv", "clips", **SHARES)


def test_verify_follows_the_groups_that_the_earlier_dataset_has_now():
    run("m.csv", "clips")
    run("clips", "parts", **SHARES)
    assert found("parts") == []
    run("m.csv", "clips", **BY_SPEAKER)
    run("m.csv", "clips")
    assert any(message.startswith("group 'speaker ") for message in leaks("parts"))
    run("clips", "parts", **SHARES)
    assert found("parts") == []


def test_verify_warns_if_the_earlier_dataset_cannot_be_read():
    run("m.csv", "clips", **SHARES)
    run("clips", "parts", **SHARES)
    Path("clips/metadata.parquet").write_bytes(b"damaged")
    ((kind, message),) = found("parts")
    assert kind == "unchecked"
    assert message.startswith(f"its partitions were not compared with {absolute('clips')}: ")
    Path("clips").rename("elsewhere")
    (warning,) = verify(open_ledger("parts"))
    assert warning.is_warning
    assert "metadata.parquet: No such file or directory. Restore that" in warning.message
    run("m.csv", "plain", **SHARES)
    Path("m.csv").unlink()
    assert found("plain") == [], "its manifest was not a dataset"


def test_partitions_that_are_numbers_are_inherited(recordings):
    write([row | {"partition": number % 2} for number, row in enumerate(recordings)])
    run("m.csv", "clips")
    assert table("clips")["partition"].dtype == int
    run("clips", "parts", partition="0=0.5,1=0.5")
    assert partition_of_each("made_from", "parts")["01"] == "1"
    assert found("parts") == []


def test_verify_reads_no_earlier_dataset_that_may_not_be_read(monkeypatch):
    run("m.csv", "clips", **SHARES)
    run("clips", "parts", **SHARES)
    monkeypatch.setenv("BATCHMILL_ALLOWED_INPUTS", "/nothing")
    ((kind, message),) = found("parts")
    assert kind == "unchecked"
    assert "BATCHMILL_ALLOWED_INPUTS" in message
