"""A sample represents all sizes, suffixes, folders and labels."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from batchmill.core.planning.forecast_sample import choose_sample, random_sample, size_classes


def pending_of(sizes, name="in/{}.wav"):
    names = [name.format(index) for index in range(len(sizes))]
    return pa.table({"input": names, "size": pa.array(sizes, pa.int64())})


@pytest.mark.parametrize("count", [1, 3, 10, 57, 999])
def test_a_sample_has_the_given_number_of_different_inputs(count):
    sizes = np.random.default_rng(1).lognormal(10, 3, 1000).astype(int)
    rows = choose_sample(pending_of(sizes), None, count)
    assert len(set(rows.tolist())) == count


def test_a_few_large_inputs_are_in_the_sample():
    sizes = [1000] * 10_000 + [10**9] * 5
    rows = choose_sample(pending_of(sizes), None, 20)
    classes = Counter(size_classes(np.array(sizes))[rows].tolist())
    assert len(classes) == 2
    assert min(classes.values()) >= 5  # They take most of the time, so all of them are chosen.


def test_each_suffix_folder_and_label_has_its_share():
    names = [
        f"{folder}/{n}.{suffix}" for n in range(50) for folder in "ab" for suffix in ("x", "y")
    ]
    pending = pa.table({"input": names, "size": pa.array([100] * len(names), pa.int64())})
    labels = pa.chunked_array([[f"label {index // 100}" for index in range(len(names))]])
    rows = choose_sample(pending, labels, 40)
    chosen = [names[row] for row in rows]
    assert Counter(name[-1] for name in chosen) == {"x": 20, "y": 20}
    assert Counter(name[0] for name in chosen) == {"a": 20, "b": 20}
    assert Counter(labels.take(pa.array(rows)).to_pylist()) == {"label 0": 20, "label 1": 20}


def test_a_sample_does_not_depend_on_the_order_of_inputs():
    pending = pending_of(np.arange(1, 500))
    backwards = pending.take(pa.array(np.arange(498, -1, -1)))
    one = pending["input"].take(pa.array(choose_sample(pending, None, 25)))
    other = backwards["input"].take(pa.array(choose_sample(backwards, None, 25)))
    assert sorted(one.to_pylist()) == sorted(other.to_pylist())


def test_a_random_sample_gives_all_inputs_the_same_chance():
    samples = [random_sample(40, 8, seed).tolist() for seed in range(2000)]
    assert samples[0] == random_sample(40, 8, 0).tolist()
    assert {len(set(sample)) for sample in samples} == {8}
    counts = np.bincount(np.concatenate(samples), minlength=40)
    assert counts.min() > 300
    assert counts.max() < 500
    assert random_sample(40, 41, 0).tolist() == list(range(40))
