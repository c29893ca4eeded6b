"""The step `audio:split`, with the name of the Ray node in each row."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from batchmill.steps.audio import split


def split_on_node(source: Path, out: Path, *, seconds: float) -> Iterator[dict[str, Any]]:
    """Cut a recording into clips. Each row has the Ray node that cut the clip."""
    for row in split(source, out, seconds=seconds):
        yield row | {"node": os.environ["NODE_NAME"]}
