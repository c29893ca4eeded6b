"""The keys of datasets as Prefect's assets."""

import string

import pytest
from batchmill.tasks.dataset import assets_at
from prefect.assets import Asset


@pytest.mark.parametrize("place", ["/data/x", "s3://bucket/x"])
def test_prefect_accepts_the_key_of_any_path(place):
    name = f"{string.punctuation.replace('/', '')} \tüß{chr(0x1F600)}\udcff"
    keys = [Asset(key=key).key for key in assets_at(f"{place}{name}/clips")]
    assert len(keys) == 1
    assert keys[0].startswith(("file:///data/x", "s3://bucket/x"))
