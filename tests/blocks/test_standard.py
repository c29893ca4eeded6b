"""Prefect's standard tests for blocks, with each block of batchmill."""

import importlib
import pkgutil
from importlib.metadata import entry_points
from pathlib import Path

import batchmill.blocks
import prefect
import pytest
from prefect.blocks.core import Block
from prefect.testing.standard_test_suites import BlockStandardTestSuite

MODULES = [
    importlib.import_module(f"batchmill.blocks.{found.name}")
    for found in pkgutil.iter_modules(batchmill.blocks.__path__)
]
BLOCKS = [
    thing
    for module in MODULES
    for thing in vars(module).values()
    if isinstance(thing, type) and issubclass(thing, Block) and thing.__module__ == module.__name__
]


def test_blocks_are_found():
    assert "RayCluster" in [block.__name__ for block in BLOCKS]


class TestBlocks(BlockStandardTestSuite):
    @pytest.fixture(params=BLOCKS, ids=lambda block: block.__name__)
    def block(self, request):
        return request.param

    def test_has_a_valid_image(self, block):
        # Prefect's test downloads the logo. Offline, check that it is one of Prefect's own logos.
        sources = Path(prefect.__file__).parent.rglob("*.py")
        assert any(str(block._logo_url) in source.read_text() for source in sources)

    def test_a_server_with_batchmill_registers_the_block(self, block):
        announced = [entry.value for entry in entry_points(group="prefect.collections")]
        assert "batchmill.blocks" in announced
        assert block.__name__ in batchmill.blocks.__all__

    def test_has_a_required_field(self, block):
        # Prefect rejects the form of a flow if a block in it has no required field.
        assert any(field.is_required() for field in block.model_fields.values())
