"""What events call the things that they are about."""

import os
from typing import Literal

from batchmill.digests import readable_id


def resource_id(kind: Literal["dataset", "source"], place: str) -> str:
    """Name a dataset or a source; a trigger may match all of a kind with batchmill.KIND.*."""
    return f"batchmill.{kind}.{readable_id(kind, os.path.basename(place.rstrip('/')), place)}"
