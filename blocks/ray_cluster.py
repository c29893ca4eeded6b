"""The Ray cluster that a run sends its shards to."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from batchmill.blocks.saved import load_saved, saved_name
from prefect.blocks.core import Block
from pydantic import (
    ConfigDict,
    Field,
    HttpUrl,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from batchmill.errors import OptionError
from batchmill.policy import parse_size

# A Ray that the run starts on its own machine.
LOCAL = "local"
_AUTO = "auto"
# Ray counts no finer.
_LEAST = 1e-4
_RAYS_OWN = ("num_cpus", "num_gpus", "memory")


class RayCluster(Block):
    """A Ray cluster, what it needs to run a step, and what each shard asks of it.

    Raises OptionError for an address or a size that is none.

    Example:
        Run a step on a saved cluster:
        ```python
        from batchmill.blocks.ray_cluster import RayCluster
        from batchmill.flows.preprocess import preprocess

        cluster = RayCluster.load("BLOCK_NAME")
        preprocess("manifest.csv", "batchmill.steps.words:split", "dataset", cluster=cluster)
        ```
    """

    # Pydantic would quote what it refuses, secrets included.
    model_config = ConfigDict(hide_input_in_errors=True)

    _block_type_name = "Ray Cluster (batchmill)"
    _block_type_slug = "batchmill-ray-cluster"
    # The picture that Prefect's own process worker has: another one would have to be on the web.
    _logo_url = HttpUrl(
        "https://raw.githubusercontent.com/PrefectHQ/prefect/420d0d6a78bb6df1fc18bcf188fdad43c1d22ea9/assets/block-logos/process.png"
    )
    _documentation_url = HttpUrl("https://docs.prefect.io/integrations/prefect-ray")
    _description = "Where batchmill's shards run, and what each of them asks for."

    address: str = Field(
        title="Address",
        description="ray://HOST:10001 (Ray Client), HOST:6379 or auto (the flow run is on a machine"
        " of the cluster), or local: a Ray that the flow run starts on its own machine.",
    )
    token: SecretStr | None = Field(
        default=None,
        title="Token",
        description="The cluster's token, where it asks for one. By default, RAY_AUTH_TOKEN or"
        " ~/.ray/auth_token.",
    )
    runtime_env: dict[str, Any] = Field(
        default_factory=dict,
        title="Runtime environment",
        description="What Ray brings to its machines for the run: working_dir, py_modules, pip,"
        " env_vars.",
    )
    num_cpus: float | None = Field(
        default=None,
        ge=_LEAST,
        title="CPUs of a shard",
        description="By default, as many as its DataLoader has workers.",
    )
    num_gpus: float = Field(
        default=0, ge=0, title="GPUs of a shard", description="May be a part of one, as 0.5."
    )
    memory: str | None = Field(
        default=None,
        title="Memory of a shard",
        description="As 8G; Ray counts it when it chooses a machine, and does not limit it.",
    )
    resources: dict[str, Annotated[float, Field(ge=0)]] = Field(
        default_factory=dict,
        title="Other resources of a shard",
        description='Of those that the machines were started with, as {"scanner": 1}.',
    )

    @field_validator("address")
    @classmethod
    def _check_address(cls, address: str) -> str:
        if address not in (LOCAL, _AUTO):
            host, port = endpoint(address)
            if not host or not 0 < port < 2**16:
                raise OptionError(
                    f"--ray {address}: expected ray://HOST:PORT, HOST:PORT, auto, or block:NAME "
                    "for a saved Ray cluster."
                )
        return address

    @field_validator("resources", mode="after")
    @classmethod
    def _check_resources(cls, resources: dict[str, float]) -> dict[str, float]:
        for name in resources:
            if not name.strip() or name == "object_store_memory":
                raise OptionError(f"--shard-resource {name}: is no resource that a shard can have.")
        return resources

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        for name, amount in {"num_gpus": self.num_gpus, **self.resources}.items():
            if amount % 1 and (amount > 1 or amount < _LEAST):
                raise OptionError(
                    f"--shard-resource {name}={amount:g}: Ray takes parts of one, down to "
                    f"{_LEAST:g}, or whole numbers."
                )
        return self

    @field_validator("memory", mode="before")
    @classmethod
    def _as_text(cls, memory: Any) -> Any:
        return str(memory) if isinstance(memory, int | float) else memory

    @field_validator("memory")
    @classmethod
    def _check_memory(cls, memory: str | None) -> str | None:
        if memory is not None:
            parse_size(memory, "memory of a shard")
        return memory

    @property
    def head(self) -> tuple[str, int] | None:
        """The host and port that its address names; None where it names none."""
        return None if self.address in (LOCAL, _AUTO) else endpoint(self.address)

    @property
    def is_local(self) -> bool:
        """Whether it is a Ray that the run starts on its own machine."""
        return self.address == LOCAL

    def needs(self, num_workers: int) -> dict[str, float]:
        """Return what a shard with so many DataLoader workers asks for, in Ray's names."""
        needs = {
            "CPU": self.num_cpus or max(1, num_workers),
            "GPU": self.num_gpus,
            "memory": parse_size(self.memory) if self.memory else 0,
            **self.resources,
        }
        return {name: amount for name, amount in needs.items() if amount}


def endpoint(address: str) -> tuple[str, int]:
    """Return the host and port of ray://HOST:PORT or HOST:PORT; empty and 0 where they are none."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    # Of another scheme, or a misspelt one, something is left.
    host = "" if "/" in host else host.strip("[]")
    return host, int(port) if port.isdecimal() else 0


def as_cluster(cluster: object) -> Any:
    """Turn an address or block:NAME into a RayCluster; what is no text stays what it is.

    Raises OptionError. A saved one is asked of the Prefect API.
    """
    if not isinstance(cluster, str):
        return cluster
    name = saved_name(cluster)
    if name is None:
        return RayCluster(address=cluster)
    return load_saved("--ray", name, RayCluster)


def make_cluster(
    address: str | None, runtime_env: Mapping[str, Any], amounts: Mapping[str, Any]
) -> RayCluster | str | None:
    """Make a cluster of what a user gives; a saved one stays what it is called.

    `amounts` are a shard's, by Ray's names (num_cpus, num_gpus, memory) or those of other
    resources. Raises OptionError.
    """
    if saved_name(address) is not None:
        if runtime_env or amounts:
            raise OptionError(
                f"--ray {address}: what the saved cluster needs is saved with it. Drop "
                "--runtime-env and --shard-resource, or give its address."
            )
        return address
    if address is None:
        if runtime_env or amounts:
            option = "--runtime-env" if runtime_env else "--shard-resource"
            raise OptionError(
                f"{option} is for a Ray cluster. Give its address with --ray, or --ray local for a "
                "Ray on this machine."
            )
        return None
    own = {name: amounts[name] for name in _RAYS_OWN if name in amounts}
    others = {name: amount for name, amount in amounts.items() if name not in _RAYS_OWN}
    try:
        return RayCluster(
            address=address,
            runtime_env=dict(runtime_env),
            resources=others,
            **own,
        )
    except ValidationError as error:
        first = error.errors()[0]
        what = first["loc"][-1]
        raise OptionError(
            f"--shard-resource {what}={first['input']}: {first['msg']}. Give it as num_gpus=1 or "
            "memory=8G."
        ) from error
