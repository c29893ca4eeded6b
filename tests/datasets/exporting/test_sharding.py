"""Test that shards have the wanted size, and that a small change moves few bounds."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from batchmill.datasets.exporting.plan_shards import shard_bounds


def shards(sizes, keys, limit):
    return [tuple(keys[a:b]) for a, b in pairwise(shard_bounds(sizes, keys, limit))]


@given(st.lists(st.integers(0, 20_000), max_size=60), st.integers(1, 50_000))
def test_the_shards_have_all_samples_in_order_and_are_not_too_large(sizes, limit):
    keys = [str(number) for number in range(len(sizes))]
    bounds = shard_bounds(sizes, keys, limit)
    assert (bounds[0], bounds[-1]) == (0, len(sizes))
    assert bounds == sorted(set(bounds))
    for first, end in pairwise(bounds):
        assert end - first == 1 or sum(sizes[first:end]) <= limit


def test_only_the_last_shard_is_small():
    keys = [str(number) for number in range(1000)]
    found = shards([9000] * 1000, keys, 1_000_000)
    assert all(50 <= len(shard) <= 100 for shard in found[:-1])


def test_a_new_sample_changes_few_shards():
    keys = [str(number) for number in range(10_000)]
    before = set(shards([9000] * 10_000, keys, 1_000_000))
    for place in (0, 17, 5000, 9999):
        with_one_more = [*keys[:place], "new", *keys[place:]]
        after = shards([9000] * 10_001, with_one_more, 1_000_000)
        assert 1 <= len(set(after) - before) <= 8, place


def test_a_larger_sample_changes_few_shards():
    keys = [str(number) for number in range(10_000)]
    sizes = [9000] * 10_000
    before = shard_bounds(sizes, keys, 1_000_000)
    sizes[5000] = 30_000
    assert len({*shard_bounds(sizes, keys, 1_000_000)} - {*before}) <= 8
