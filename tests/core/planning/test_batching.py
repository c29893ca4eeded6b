"""Test the division into batches and shards: it is complete, disjoint and balanced."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchmill.core.options.job_options import ExecutionOptions
from batchmill.core.planning.batching import (
    MAX_SHARDS,
    Cores,
    cores_of_machine,
    input_weights,
    own_cores,
    plan_shards,
)

sizes = st.lists(st.integers(-1, 10**9), min_size=1, max_size=300)


@given(
    sizes,
    st.none() | st.integers(1, 400),
    st.none() | st.integers(0, 9),
    st.integers(1, 64),
    st.integers(1, 16),
)
def test_every_input_is_in_exactly_one_shard(sizes, batch_size, num_workers, node, nodes):
    batching = ExecutionOptions(batch_size=batch_size, num_workers=num_workers)
    layout = plan_shards(np.array(sizes), batching, Cores(total=node * nodes, node=node))
    assert sorted(layout.order.tolist()) == list(range(len(sizes)))
    assert layout.bounds[0] == 0
    assert layout.bounds[-1] == len(sizes)
    assert all(start < stop for start, stop in zip(layout.bounds, layout.bounds[1:], strict=False))
    assert 1 <= layout.shards <= MAX_SHARDS


def test_the_number_of_shards_is_bounded():
    layout = plan_shards(
        np.ones(1_000_000, np.int64), ExecutionOptions(), Cores(total=4096, node=8)
    )
    assert layout.shards == MAX_SHARDS


def test_few_inputs_make_one_shard_that_uses_all_cores():
    layout = plan_shards(np.ones(4, np.int64), ExecutionOptions(), Cores(total=2, node=2))
    assert (layout.shards, layout.batch_size, layout.num_workers) == (1, 1, 2)


@pytest.mark.parametrize(("inputs", "shards"), [(100, 2), (768, 3), (1024, 4), (4000, 8)])
def test_shards_are_large_enough_for_their_overhead(inputs, shards):
    layout = plan_shards(np.ones(inputs, np.int64), ExecutionOptions(), Cores(total=4, node=2))
    assert layout.shards == shards


@pytest.mark.parametrize(("inputs", "shards"), [(100, 1), (100_000, 1), (100_001, 2)])
def test_one_slot_gets_one_shard(inputs, shards):
    layout = plan_shards(np.ones(inputs, np.int64), ExecutionOptions(), Cores(total=2, node=2))
    assert layout.shards == shards


def test_a_growing_cluster_gets_more_shards_than_slots():
    layout = plan_shards(
        np.ones(4000, np.int64), ExecutionOptions(), Cores(total=2, node=2, may_grow=True)
    )
    assert layout.shards == 4


def test_enough_inputs_use_the_whole_cluster():
    layout = plan_shards(np.ones(500, np.int64), ExecutionOptions(), Cores(total=128, node=8))
    assert layout.shards >= 16


def test_shards_have_similar_sizes_in_bytes():
    spread = np.random.default_rng(0).integers(1_000, 10**9, 1000)
    layout = plan_shards(spread, ExecutionOptions(batch_size=1), Cores(total=8, node=1))
    loads = [
        spread[layout.order[start:stop]].sum()
        for start, stop in zip(layout.bounds, layout.bounds[1:], strict=False)
    ]
    assert len(loads) > 1
    assert max(loads) <= 1.1 * np.mean(loads)


def lpt(weights, workers):
    """Assign each batch to the worker that is free first, and return the load of each worker."""
    busy = [0.0] * workers
    for weight in weights:
        first = busy.index(min(busy))
        busy[first] += weight
    return busy


@pytest.mark.parametrize("seed", range(5))
def test_uneven_inputs_balance_the_shards(seed):
    exponents = np.random.default_rng(seed).uniform(3, 9, 50_000)
    spread = (10**exponents).astype(np.int64)
    layout = plan_shards(spread, ExecutionOptions(), Cores(total=64, node=8))
    loads = [
        input_weights(spread[layout.order[start:stop]]).sum()
        for start, stop in zip(layout.bounds, layout.bounds[1:], strict=False)
    ]
    assert len(loads) == 32
    assert max(loads) <= 1.1 * np.mean(loads)


def test_small_inputs_are_spread_over_the_shards():
    sizes = np.array([10**12] * 15 + [1] * 400_000)
    layout = plan_shards(sizes, ExecutionOptions(), Cores(total=32, node=8))
    counts = np.diff(layout.bounds)
    assert len(counts) == 16
    assert counts.max() <= 2.1 * counts.mean()


def test_each_choice_has_its_reason():
    layout = plan_shards(
        np.ones(600_000, np.int64), ExecutionOptions(num_workers=2), Cores(total=2, node=2)
    )
    assert layout.reasons == (
        "num_workers 2: as given",
        "batch_size 256: at least 64 batches per core if possible, at most 256 inputs per batch",
        "shards 6: at most 100,000 inputs per shard",
    )


def test_values_of_the_user_are_kept():
    layout = plan_shards(
        np.ones(100, np.int64),
        ExecutionOptions(batch_size=7, num_workers=3),
        Cores(total=2, node=2),
    )
    assert (layout.batch_size, layout.num_workers) == (7, 3)


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", 2), ("50000 100000", 1), ("150000 100000", 2), ("800000 100000", 2)],
)
def test_a_container_has_the_cores_of_its_control_group(tmp_path, monkeypatch, quota, expected):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert own_cores(tmp_path) == expected


def test_cores_without_a_control_group(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert own_cores(tmp_path) == 2


def test_remote_inputs_have_larger_batches():
    layout = plan_shards(
        np.ones(600, np.int64), ExecutionOptions(), Cores(total=2, node=2), remote=True
    )
    assert layout.batch_size == 75
    assert "at least 4 batches per core" in layout.reasons[1]


@pytest.mark.parametrize(
    ("gpus", "workers", "shards"), [(0, 8, 4), (1, 16, 1), (2, 8, 2), (4, 4, 4), (32, 1, 32)]
)
def test_each_gpu_has_one_shard_and_an_equal_part_of_the_cores(gpus, workers, shards):
    cores = cores_of_machine(16, gpus)
    layout = plan_shards(np.ones(4000, np.int64), ExecutionOptions(), cores, whole_batches=True)
    assert layout.num_workers == workers
    assert cores.slots_for(layout.num_workers) == (gpus or 2)
    assert layout.shards >= shards
