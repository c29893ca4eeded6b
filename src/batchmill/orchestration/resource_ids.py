"""Resource ids of datasets and sources in Prefect events."""

import os
from typing import Literal

from batchmill.digests import readable_id


def resource_id(kind: Literal["dataset", "source"], place: str) -> str:
    """Return the id of a dataset or a source.

    A trigger can match all datasets with `batchmill.dataset.*`, and all sources with
    `batchmill.source.*`.
    """
    return f"batchmill.{kind}.{readable_id(kind, os.path.basename(place.rstrip('/')), place)}"
