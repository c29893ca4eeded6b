"""Batches and shards: nobody is left out, nobody works twice, the load is even."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchmill import OptionError
from batchmill.batching import MAX_SHARDS, Batching, Cores, lay_out

sizes = st.lists(st.integers(-1, 10**9), min_size=1, max_size=300)


@given(
    sizes,
    st.none() | st.integers(1, 400),
    st.none() | st.integers(0, 9),
    st.integers(1, 64),
    st.integers(1, 16),
)
def test_every_input_is_in_just_one_shard(sizes, batch_size, num_workers, node, nodes):
    batching = Batching(batch_size=batch_size, num_workers=num_workers)
    layout = lay_out(np.array(sizes), batching, Cores(total=node * nodes, node=node))
    assert sorted(layout.order.tolist()) == list(range(len(sizes)))
    assert layout.bounds[0] == 0
    assert layout.bounds[-1] == len(sizes)
    assert all(start < stop for start, stop in zip(layout.bounds, layout.bounds[1:], strict=False))
    assert 1 <= layout.shards <= MAX_SHARDS
    assert layout.slots >= 1


def test_the_number_of_shards_is_bounded():
    layout = lay_out(np.ones(1_000_000, np.int64), Batching(), Cores(total=4096, node=8))
    assert layout.shards == MAX_SHARDS


def test_a_few_inputs_are_one_shard_that_uses_all_cores():
    layout = lay_out(np.ones(4, np.int64), Batching(), Cores(total=2, node=2))
    assert (layout.shards, layout.batch_size, layout.num_workers) == (1, 1, 2)


def test_a_cluster_is_filled_where_there_are_inputs_enough():
    layout = lay_out(np.ones(500, np.int64), Batching(), Cores(total=128, node=8))
    assert layout.slots == 16
    assert layout.shards >= 16


def test_shards_are_about_even_in_bytes():
    spread = np.random.default_rng(0).integers(1_000, 10**9, 1000)
    layout = lay_out(spread, Batching(batch_size=1), Cores(total=8, node=1))
    loads = [
        spread[layout.order[start:stop]].sum()
        for start, stop in zip(layout.bounds, layout.bounds[1:], strict=False)
    ]
    assert len(loads) > 1
    assert max(loads) <= 1.1 * np.mean(loads)


def test_what_the_user_gives_is_kept():
    layout = lay_out(
        np.ones(100, np.int64), Batching(batch_size=7, num_workers=3), Cores(total=2, node=2)
    )
    assert (layout.batch_size, layout.num_workers) == (7, 3)


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"num_workers": -1}])
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(OptionError, match="is less than the minimum of"):
        Batching(**wrong)
