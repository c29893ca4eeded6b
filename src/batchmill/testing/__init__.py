"""For tests of steps of your own: `check_step` runs one as a run does, and says what it breaks."""

from batchmill.testing.check import check_step

__all__ = ["check_step"]
