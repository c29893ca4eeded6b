"""Treat small tables as large ones: few rows are copied at a time, and the others are in files."""

import sys
from contextlib import contextmanager

import pytest

from batchmill.core.ledger import parts
from batchmill.core.storage import large_tables


@contextmanager
def small_tables(rows=3):
    """Copy this number of rows at a time, and map all tables, until the block ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_tables, "MAPPED_BYTES", 0)
        patch.setattr(parts, "_ROWS_AT_A_TIME", 2 * rows)
        for name, module in list(sys.modules.items()):
            if name.startswith("batchmill.") and hasattr(module, "SLICE_ROWS"):
                patch.setattr(module, "SLICE_ROWS", rows)
        yield
