"""Files that somebody may be writing still: those whose time is too near."""

import math
import time

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.errors import OptionError
from batchmill.manifest.inputs import MISSING_SIZE

_NANOSECONDS = 1_000_000_000


def check_settle(seconds: float) -> None:
    """Raise OptionError unless `seconds` is a time for which a file may have to be left alone."""
    if seconds < 0:
        raise OptionError(f"--settle: {seconds:g} is less than the minimum of 0.")
    if not math.isfinite(seconds):
        raise OptionError(f"--settle {seconds}: expected a number of seconds, 0 or more.")


def is_unsettled(inputs: pa.Table, seconds: float) -> pa.ChunkedArray:
    """Tell which files of a listing were written to less than `seconds` away from now.

    A time in the far future is somebody's wrong clock, and no sign of work going on. What was
    listed and is gone already is being moved.
    """
    away = pc.abs(pc.subtract(inputs["mtime_ns"], time.time_ns()))
    near = pc.less(away, int(seconds * _NANOSECONDS))
    return pc.or_(near, pc.equal(inputs["size"], MISSING_SIZE))
