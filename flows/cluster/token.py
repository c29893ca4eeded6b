"""The token by which Ray's processes let each other in."""

import os
import secrets
import sys
from pathlib import Path

from batchmill.blocks.ray_cluster import RayCluster


def present_token(cluster: RayCluster) -> None:
    """Have Ray show the cluster's token, if there is one; to be called before Ray is imported.

    A local Ray gets a random token: its ports are open to the network, and anyone who reaches them
    could run code without one. Ray reads these variables when it is imported. If the caller has
    imported Ray before, nothing can change that.
    """
    if "ray" in sys.modules and not cluster.token:
        return
    if cluster.token:
        os.environ["RAY_AUTH_TOKEN"] = cluster.token.get_secret_value()
    elif cluster.is_local and "RAY_AUTH_MODE" not in os.environ and not _has_token():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    # Ray Client, at ray://, would not look for a token without this.
    if _has_token():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def _has_token() -> bool:
    named = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
    return named or Path("~/.ray/auth_token").expanduser().exists()
