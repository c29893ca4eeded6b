"""The token that Ray's processes use to authenticate each other."""

import os
import secrets
import sys
from pathlib import Path

from batchmill.blocks.ray_cluster import RayCluster


def present_token(cluster: RayCluster) -> None:
    """Set the environment variables that make Ray use the cluster's token.

    Call this before Ray is imported, because Ray reads the variables at its import. If Ray is
    imported already, a local Ray gets no token.

    A local Ray gets a random token. Its ports are open to the network, and without a token, anyone
    who reaches them could run code.
    """
    if "ray" in sys.modules and not cluster.token:
        return
    if cluster.token:
        os.environ["RAY_AUTH_TOKEN"] = cluster.token.get_secret_value()
    elif cluster.is_local and "RAY_AUTH_MODE" not in os.environ and not _has_token():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    # Without this variable, Ray Client (ray://) ignores the token.
    if _has_token():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def _has_token() -> bool:
    named = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
    return named or Path("~/.ray/auth_token").expanduser().exists()
