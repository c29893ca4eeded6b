"""Names are found as by Arrow and pandas, also if different names have the same hash."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from batchmill.core.storage import name_search
from batchmill.core.storage.name_search import repeated, rows_of


@pytest.fixture(params=[64, 3, 0])
def hash_bits(request, monkeypatch):
    """Hashes of few bits are equal for many names."""
    whole = name_search.xxh3_64_intdigest
    limit = 2**request.param
    monkeypatch.setattr(name_search, "xxh3_64_intdigest", lambda text: whole(text) % limit)
    monkeypatch.setattr(name_search, "SLICE_ROWS", 7)


def some_names(seed, count, kinds):
    chance = np.random.default_rng(seed)
    return [None if number == 5 else f"n{number}" for number in chance.integers(0, kinds, count)]


def columns(names):
    """The names as one array, and as several."""
    yield pa.array(names, pa.string())
    yield pa.chunked_array([names[:3], names[3:]], pa.string())


@pytest.mark.usefixtures("hash_bits")
@pytest.mark.parametrize(("count", "kinds"), [(0, 1), (1, 1), (50, 20), (50, 1000)])
def test_the_first_equal_row_is_found(count, kinds):
    for names in columns(some_names(1, 40, kinds)):
        for values in columns(some_names(2, count, kinds)):
            expected = pc.index_in(names, value_set=values).cast(pa.int64())
            assert rows_of(names, values).to_pylist() == expected.to_pylist()


@pytest.mark.usefixtures("hash_bits")
@pytest.mark.parametrize(("count", "kinds"), [(0, 1), (1, 1), (2, 1), (50, 20), (50, 1000)])
def test_repeated_names_are_found(count, kinds):
    names = some_names(3, count, kinds)
    expected = np.flatnonzero(pd.Series(names, dtype=object).duplicated(keep=False)).tolist()
    for column in columns(names):
        rows, numbers = repeated(column)
        assert sorted(rows.tolist()) == expected
        groups = pd.Series(rows).groupby(numbers, sort=False)
        assert [len({names[row] for row in group}) for _, group in groups] == [1] * len(groups)
        assert len(groups) == len({names[row] for row in expected})
        assert all(group.is_monotonic_increasing for _, group in groups)
        assert (np.diff(numbers) >= 0).all()
