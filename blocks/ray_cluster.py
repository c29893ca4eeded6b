"""A block for the Ray cluster that executes a run's shards."""

import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from batchmill.blocks.saved_block import FORM, loaded, logo, saved_name
from prefect.blocks.core import Block
from pydantic import Field, HttpUrl, SecretStr, ValidationError, field_validator, model_validator

from batchmill.core.options.validation import Described, parse_size
from batchmill.errors import OptionError

# The address of a Ray that the run starts on its own machine.
LOCAL = "local"
AUTO = "auto"
# The smallest amount of a resource that Ray accepts.
_LEAST = 1e-4
_RAYS_OWN = ("num_cpus", "num_gpus", "memory")


class RayCluster(Described, Block):
    """A Ray cluster, its runtime environment, and the resources that each shard requests.

    Raises OptionError for an address or a size that is not valid.

    Example:
        Run a step on a saved cluster:
        ```python
        from batchmill.blocks.ray_cluster import RayCluster
        from batchmill.flows.preprocess import preprocess

        cluster = RayCluster.load("BLOCK_NAME")
        preprocess("manifest.csv", "batchmill.steps.words:split", "dataset", cluster=cluster)
        ```
    """

    model_config = FORM

    _block_type_name = "Ray Cluster (batchmill)"
    _block_type_slug = "batchmill-ray-cluster"
    _logo_url = logo("process")
    _documentation_url = HttpUrl(
        "https://github.com/batchmill/batchmill/blob/main/docs/how-to/cluster.md#save-a-cluster"
    )
    _description = "The Ray cluster that runs batchmill's shards, and the resources of each shard."

    address: str
    """ray://HOST:10001 (Ray Client); HOST:6379 or auto (the flow run is on a machine of the
    cluster); or local (the flow run starts Ray on its own machine)."""
    token: SecretStr | None = None
    """The cluster's token, if it requires one. Default: RAY_AUTH_TOKEN or ~/.ray/auth_token."""
    runtime_env: dict[str, Any] = Field(default_factory=dict, title="Runtime environment")
    """Runtime environment that Ray sets up on its nodes: working_dir, py_modules, pip, env_vars."""
    num_cpus: float | None = Field(default=None, ge=_LEAST, title="CPUs of a shard")
    """Default: one per DataLoader worker."""
    num_gpus: float | None = Field(default=None, ge=0, title="GPUs of a shard")
    """May be a fraction, for example 0.5. Default: 1 for a model that can use a GPU, if the cluster
    has GPUs; otherwise 0."""
    memory: str | None = Field(default=None, title="Memory of a shard")
    """For example 8G. Ray uses it to choose a machine, but does not enforce it."""
    resources: dict[str, Annotated[float, Field(ge=0)]] = Field(
        default_factory=dict, title="Other resources of a shard"
    )
    """Custom resources of the machines, for example {"scanner": 1}."""

    @field_validator("address")
    @classmethod
    def _check_address(cls, address: str) -> str:
        if address not in (LOCAL, AUTO):
            host, port = endpoint(address)
            if not host or not 0 < port < 2**16:
                raise OptionError(
                    f"--ray {address}: expected ray://HOST:PORT, HOST:PORT, auto, local, or "
                    "block:NAME for a saved Ray cluster."
                )
        return address

    @model_validator(mode="after")
    def _check_resources(self) -> Self:
        for name in self.resources:
            if not name.strip() or name == "object_store_memory":
                raise OptionError(
                    f"--shard-resource {name!r}: a shard cannot request this resource. Remove it."
                )
        for name, amount in {"num_gpus": self.num_gpus or 0, **self.resources}.items():
            if amount % 1 and (amount > 1 or amount < _LEAST):
                raise OptionError(
                    f"--shard-resource {name}={amount:g}: expected a whole number, or a "
                    f"fraction from {_LEAST:g} to 1."
                )
        return self

    @field_validator("memory", mode="before")
    @classmethod
    def _check_memory(cls, memory: Any) -> Any:
        memory = str(memory) if isinstance(memory, int | float) else memory
        if isinstance(memory, str):
            parse_size(memory, "memory of a shard")
        return memory

    @property
    def head(self) -> tuple[str, int] | None:
        """The host and port of the address. None for local and auto."""
        return None if self.address in (LOCAL, AUTO) else endpoint(self.address)

    @property
    def is_local(self) -> bool:
        """True if the run starts Ray on its own machine."""
        return self.address == LOCAL

    def present_token(self) -> None:
        """Set the environment variables that make Ray use the cluster's token.

        Call this before Ray is imported, because Ray reads the variables at its import. If Ray is
        imported already, a local Ray gets no token.

        A local Ray gets a random token. Its ports are open to the network, and without a token,
        anyone who reaches them could run code.
        """
        if "ray" in sys.modules and not self.token:
            return
        if self.token:
            os.environ["RAY_AUTH_TOKEN"] = self.token.get_secret_value()
        elif self.is_local and "RAY_AUTH_MODE" not in os.environ and not _has_token():
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        # Without this variable, Ray Client (ray://) ignores the token.
        if _has_token():
            os.environ.setdefault("RAY_AUTH_MODE", "token")

    def needs(self, num_workers: int) -> dict[str, float]:
        """Return the resources that a shard with `num_workers` requests, by Ray's names."""
        needs = {
            "CPU": self.num_cpus or max(1, num_workers),
            "GPU": self.num_gpus or 0,
            "memory": parse_size(self.memory, "memory") if self.memory else 0,
            **self.resources,
        }
        return {name: amount for name, amount in needs.items() if amount}


def _has_token() -> bool:
    named = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
    return named or Path("~/.ray/auth_token").expanduser().exists()


def endpoint(address: str) -> tuple[str, int]:
    """Return the host and port of ray://HOST:PORT or HOST:PORT. Empty and 0 if they are missing."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    # The rest contains a slash if the scheme is unknown or misspelt.
    host = "" if "/" in host else host.strip("[]")
    return host, int(port) if port.isdecimal() else 0


def as_cluster(cluster: object) -> Any:
    """Convert an address or block:NAME to a RayCluster. Other values are returned unchanged.

    A saved cluster is fetched from the Prefect API. Raises OptionError.
    """
    fetched = loaded("--ray", cluster, RayCluster)
    return RayCluster(address=fetched) if isinstance(fetched, str) else fetched


def make_cluster(
    address: str | None, runtime_env: Mapping[str, Any], amounts: Mapping[str, Any]
) -> RayCluster | str | None:
    """Return the cluster that a user describes. For a saved cluster, return its block:NAME.

    `amounts` are the resources of a shard: num_cpus, num_gpus, memory or custom resources. Raises
    OptionError.
    """
    if saved_name(address) is not None:
        if runtime_env or amounts:
            raise OptionError(
                f"--ray {address}: a saved cluster contains its runtime environment and shard "
                "resources. Remove --runtime-env and --shard-resource, or give an address."
            )
        return address
    if address is None:
        if runtime_env or amounts:
            option = "--runtime-env" if runtime_env else "--shard-resource"
            raise OptionError(
                f"{option} needs a Ray cluster. Give its address with --ray, or start Ray on this "
                "machine with --ray local."
            )
        return None
    known = {name: amounts[name] for name in _RAYS_OWN if name in amounts}
    others = {name: amount for name, amount in amounts.items() if name not in _RAYS_OWN}
    try:
        return RayCluster(address=address, runtime_env=dict(runtime_env), resources=others, **known)
    except ValidationError as error:
        first = error.errors()[0]
        what = first["loc"][-1]
        raise OptionError(
            f"--shard-resource {what}={first['input']}: {first['msg']}. Give it as num_gpus=1 or "
            "memory=8G."
        ) from error
