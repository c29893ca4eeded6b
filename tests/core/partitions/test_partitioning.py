"""Partitions: each group is in one partition, and stays there if other groups are added."""

from collections import Counter

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchmill import ManifestError, OptionError, load_manifest
from batchmill.core.options.job_options import PartitionOptions
from batchmill.core.partitions.partitioning import (
    GROUPS,
    assign,
    make_partitioning,
    uneven_partitions,
)

SHARES = "train=0.8,validation=0.1,test=0.1"
names = st.text("abcdef", min_size=1, max_size=4)
seeds = st.integers(-3, 2**70)
shares = st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any)


def groups_of(keys, strata=None, given=None):
    nothing = [None] * len(keys)
    return pa.table([keys, strata or nothing, given or nothing], schema=GROUPS)


def make(partition="", **options):
    return make_partitioning(PartitionOptions(partition=partition, **options))


def assigned(keys, partitioning, strata=None, given=None, known=None):
    found = assign(groups_of(keys, strata, given), partitioning, known).to_pylist()
    by_key = dict(zip(keys, found, strict=True))
    assert [by_key[key] for key in keys] == found, "a group is in one partition"
    return by_key


def partitioning_of(numbers, **options):
    parts = ",".join(f"p{index}={n / sum(numbers)!r}" for index, n in enumerate(numbers))
    return make(parts, **options)


# By hash


@settings(max_examples=50, deadline=None)
@given(st.lists(names, min_size=1, max_size=60), st.randoms(), seeds, shares)
def test_a_groups_partition_depends_only_on_its_key_the_seed_and_the_shares(
    keys, random, seed, numbers
):
    partitioning = partitioning_of(numbers, seed=seed)
    whole = assigned(keys, partitioning)
    some = random.sample(keys, random.randint(1, len(keys)))
    assert assigned(some, partitioning) == {key: whole[key] for key in some}
    for key in keys:
        assert assigned([key], partitioning) == {key: whole[key]}


def test_the_assignment_is_the_same_in_all_versions():
    # A change of this result would move the inputs of all existing datasets.
    keys = ["group:anna", "group:ben", "input:a.wav", "input:Grüße.wav", "group:7", "group:8"]
    found = assigned(keys, make("a=0.25,b=0.25,c=0.25,d=0.25", seed=7))
    assert "".join(found.values()) == "bdbcbb"


def test_more_data_moves_no_group():
    partitioning = make(SHARES)
    keys = [f"group:{number}" for number in range(6_000)]
    before, after = assigned(keys[:5_000], partitioning), assigned(keys[::-1], partitioning)
    assert before.items() <= after.items()


def test_groups_are_divided_close_to_the_shares_and_differently_with_another_seed():
    keys = [f"group:{number}" for number in range(10_000)]
    found = [assigned(keys, make(SHARES, seed=seed)) for seed in (0, 1)]
    for by_key in found:
        counts = Counter(by_key.values())
        assert counts["train"] == pytest.approx(8_000, rel=0.03)
        assert counts["test"] == pytest.approx(1_000, rel=0.1)
    assert found[0] != found[1]


def test_other_shares_move_only_the_groups_between_the_old_and_new_bounds():
    keys = [f"group:{number}" for number in range(10_000)]
    old, new = (assigned(keys, make(f"train={n},test={100 - n}")) for n in (80, 90))
    assert {key for key in keys if old[key] == "train"} <= {k for k in keys if new[k] == "train"}
    assert sum(old[key] != new[key] for key in keys) == pytest.approx(1_000, rel=0.1)


@settings(max_examples=50, deadline=None)
@given(st.lists(names, min_size=1, max_size=60), seeds)
def test_a_partition_with_the_share_0_stays_empty(keys, seed):
    for strata in (None, ["x"] * len(keys)):
        options = {"seed": seed, "stratify": "label" if strata else None}
        first, last = "none=0,all=1", "all=1,none=0"
        for text in (first, last):
            found = assigned(keys, make(text, **options), strata)
            assert set(found.values()) == {"all"}


# Within strata


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(names, st.sampled_from("xyz"), min_size=1, max_size=80), st.randoms(), shares
)
def test_each_stratum_is_within_one_group_of_its_shares(labels, random, numbers):
    partitioning = partitioning_of(numbers, stratify="label")
    found = assigned(list(labels), partitioning, list(labels.values()))
    for stratum in set(labels.values()):
        members = [found[key] for key in labels if labels[key] == stratum]
        for name, share in partitioning.shares.items():
            assert abs(members.count(name) - share * len(members)) < 1 + 1e-6
    # The order of the inputs does not matter.
    keys = random.sample(list(labels), len(labels))
    assert assigned(keys, partitioning, [labels[key] for key in keys]) == found


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(names, st.sampled_from("xyz"), min_size=2, max_size=60),
    st.integers(1, 50),
    shares,
)
def test_earlier_assignments_stay_and_new_groups_fill_the_largest_deficits(labels, count, numbers):
    partitioning = partitioning_of(numbers, stratify="label")
    keys = list(labels)
    count = min(count, len(keys) - 1)
    strata = list(labels.values())
    before = assigned(keys[:count], partitioning, strata[:count])
    after = assigned(keys, partitioning, strata, known=before)
    assert before.items() <= after.items()
    for stratum in set(strata):
        members = [key for key in keys if labels[key] == stratum]
        new = [key for key in members if key not in before]
        for name, share in partitioning.shares.items():
            if any(after[key] == name for key in new):
                # The partition still had a deficit before its last group was added.
                assert sum(after[key] == name for key in members) < share * len(members) + 1


def test_a_group_has_the_stratum_of_most_of_its_rows():
    partitioning = make("a=0.5,b=0.5", stratify="label")
    keys, strata = [], []
    # If two strata are equally frequent, the first by name counts: torn groups are in x.
    for kind, labels in {"most x": "yxx", "torn": "yx", "all y": "y"}.items():
        keys += [f"{kind} {number}" for number in range(40) for _ in labels]
        strata += [*labels] * 40
    found = assigned(keys, partitioning, strata)
    counts = {}
    for key, partition in found.items():
        counts.setdefault(key.startswith("all y"), Counter())[partition] += 1
    assert counts == {False: {"a": 40, "b": 40}, True: {"a": 20, "b": 20}}
    assert assigned(keys[::-1], partitioning, strata[::-1]) == found


# Partitions that the manifest names


@settings(max_examples=50, deadline=None)
@given(st.lists(names, min_size=1, max_size=30), seeds, st.booleans(), st.data())
def test_a_partition_named_in_the_manifest_applies_to_the_whole_group(keys, seed, stratified, data):
    partitioning = make("a=0.5,b=0.5,c=0", seed=seed, stratify="s" if stratified else None)
    strata = ["x"] * len(keys) if stratified else None
    named = data.draw(st.dictionaries(st.sampled_from(keys), st.sampled_from("abc")))
    row_of = {key: row for row, key in enumerate(keys)}  # One row of the group names it.
    column = [named.get(key) if row_of[key] == row else None for row, key in enumerate(keys)]
    known = dict.fromkeys(keys, "b")
    found = assigned(keys, partitioning, strata, column, known)
    assert named.items() <= found.items()
    if not stratified:
        others = assigned(keys, partitioning)
        assert all(found[key] == others[key] for key in keys if key not in named)


def manifest_of(tmp_path, text, partition=SHARES, **options):
    (tmp_path / "m.csv").write_text(text)
    how = make(partition, **options)
    return load_manifest(tmp_path / "m.csv", partitioning=how)


def faults_of(*arguments, **options):
    with pytest.raises(ManifestError) as refused:
        manifest_of(*arguments, **options)
    return refused.value.faults


def test_a_group_with_two_named_partitions_is_rejected_with_both_lines(tmp_path):
    text = "input,who,partition\na,anna,train\nb,ben,\nc,anna,\nd,anna,test\n"
    (fault,) = faults_of(tmp_path, text, group_by="who")
    assert fault == (
        "line 5: has the partition 'test', but line 2 of the same group 'anna' has 'train'. "
        "Give all rows of a group the same partition."
    )
    # Without --group-by, each row may have another partition.
    assert len(manifest_of(tmp_path, text)) == 4


def test_a_named_partition_without_a_share_is_rejected(tmp_path):
    text = "input,partition\na,holdout\nb,\nc,tran\n"
    assert [fault.split(":")[0] for fault in faults_of(tmp_path, text)] == ["line 2", "line 4"]
    (fault,) = faults_of(tmp_path, text, SHARES + ",holdout=0")
    assert "'tran' is not in --partition (train, validation, test, holdout)" in fault


def test_missing_columns_are_reported_with_the_existing_columns(tmp_path):
    faults = faults_of(tmp_path, "input,label\na,x\n", group_by="who", stratify="kind")
    found, remedy = "(found: 'input', 'label')", "Add it, or name another."
    assert faults == (
        f"no column 'who' for --group-by {found}. {remedy}",
        f"no column 'kind' for --stratify {found}. {remedy}",
    )


# Keys


def test_an_input_without_a_value_is_a_separate_group(tmp_path):
    manifest = manifest_of(tmp_path, "input,who\na,b\nb,\nc, \n", group_by="who")
    assert manifest.groups["group"].to_pylist() == ["group:b", "input:b", "input:c"]


@pytest.mark.parametrize("value", ["7", "1.5", "1e3", "true", "007"])
def test_a_groups_key_does_not_depend_on_other_values_in_its_column(tmp_path, value):
    alone, mixed = (
        manifest_of(tmp_path, f"input,who\na,{value}\nb,{other}\nc,\n", group_by="who")
        for other in (value, "text")
    )
    assert alone.groups["group"][0] == mixed.groups["group"][0]
    assert alone.groups["group"][0].as_py() == f"group:{value}"


def test_a_groups_key_is_the_same_in_all_forms_of_manifest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame({"input": ["a", "b", "c"], "who": [7, None, 8], "good": [True] * 3})
    frame.to_csv("m.csv", index=False)  # pandas writes 7.0, because of the empty cell.
    frame.to_parquet("m.parquet")
    (tmp_path / "n.csv").write_text("input,who\na,7\nb,\nc,8\n")
    (tmp_path / "m.jsonl").write_text(
        '{"input": "a", "who": 7}\n{"input": "b", "who": null}\n{"input": "c", "who": "8"}\n'
    )
    how = make(SHARES, group_by="who")
    for source in (frame, "m.parquet", "m.csv", "n.csv", "m.jsonl"):
        found = load_manifest(source, partitioning=how).groups["group"].to_pylist()
        assert found == ["group:7", "input:b", "group:8"], source


# Options of a user


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train=0.8, validation=0.1 ,test=0.1", {"train": 0.8, "validation": 0.1, "test": 0.1}),
        ("train=80,validation=10,test=10", {"train": 0.8, "validation": 0.1, "test": 0.1}),
        ("a=0.7,b=0.1,c=0.1,d=0.1", {"a": 0.7, "b": 0.1, "c": 0.1, "d": 0.1}),
        ("all=1", {"all": 1}),
        ("all-2_x=100,held=0", {"all-2_x": 1, "held": 0}),
    ],
)
def test_shares_sum_to_1_or_to_100(text, expected):
    assert make(text).shares == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train=0.8,test=0.1", "sum to 0.9; they must sum to 1 or to 100"),
        ("train=0.8,test=0.2001", "sum to 1.0001"),
        ("train=8,test=2", "sum to 10;"),
        ("train", "share of 'train' is ''"),
        ("train=much", "share of 'train' is 'much'"),
        ("train=nan", "share of 'train' is 'nan'"),
        ("train=inf", "share of 'train' is 'inf'"),
        ("train=1.5,test=-0.5", "share of 'test' is '-0.5'"),
        ("train=1,", "'' is not a valid name"),
        ("the rest=1", "'the rest' is not a valid name"),
        ("a=0.5,a=0.5", "'a' is listed twice"),
    ],
)
def test_invalid_shares_are_rejected(text, expected):
    with pytest.raises(OptionError, match=r"^--partition ") as refused:
        make(text)
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    ("others", "name"),
    [({"group_by": "who"}, "--group-by"), ({"stratify": "x"}, "--stratify"), ({"seed": 3}, "--se")],
)
def test_options_without_partitions_are_rejected(others, name):
    assert make() is None
    with pytest.raises(OptionError, match=name):
        make(**others)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"train": 80, "test": 10, "rest": 10, "held": 0}, []),
        # Exactly half of the share, or exactly half more, is still close enough.
        ({"train": 80, "test": 5, "rest": 15, "held": 0}, []),
        (
            {"train": 80, "test": 4, "rest": 16, "held": 0},
            [
                "partition 'test' has 4 % of the inputs, but its share is 10 %",
                "partition 'rest' has 16 % of the inputs, but its share is 10 %",
            ],
        ),
        (
            {"train": 9, "test": 1, "rest": 0, "held": 0},
            ["partition 'rest' has no inputs, but its share is 10 %"],
        ),
        ({"train": 0, "test": 0, "rest": 0, "held": 0}, []),
    ],
)
def test_a_partition_far_from_its_share_is_reported(counts, expected):
    partitioning = make("train=0.8,test=0.1,rest=0.1,held=0")
    assert uneven_partitions(counts, partitioning) == expected
