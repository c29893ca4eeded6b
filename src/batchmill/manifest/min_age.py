"""Find files that another process may still be writing: files that changed too recently."""

import math
import time

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.errors import OptionError
from batchmill.manifest.file_stats import MISSING_SIZE

_NANOSECONDS = 1_000_000_000


def check_min_age(seconds: float) -> None:
    """Check the minimum age of files.

    Args:
        seconds: The value of the option --min-age.

    Raises:
        OptionError: The value is negative or not finite.
    """
    if seconds < 0:
        raise OptionError(f"--min-age: {seconds:g} is less than the minimum of 0.")
    if not math.isfinite(seconds):
        raise OptionError(f"--min-age {seconds}: expected a number of seconds, 0 or more.")


def is_too_young(inputs: pa.Table, seconds: float) -> pa.ChunkedArray:
    """Return which files of a listing are too young to be read.

    Args:
        inputs: The inputs, with `size` and `mtime_ns`.
        seconds: The minimum distance between a file's time and now, in either direction.

    Returns:
        A mask. A file whose time is further in the future is old enough, because a clock was wrong.
        A file that disappeared is too young, because another process is moving it.
    """
    distance = pc.abs(pc.subtract(inputs["mtime_ns"], time.time_ns()))
    is_near = pc.less(distance, int(seconds * _NANOSECONDS))
    return pc.or_(is_near, pc.equal(inputs["size"], MISSING_SIZE))
