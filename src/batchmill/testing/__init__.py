"""Test your own steps: `check_step` runs a step as a real run does, and lists its faults."""

from batchmill.testing.check import check_step

__all__ = ["check_step"]
