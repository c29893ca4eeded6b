"""The contenders: their names, environments and commands."""

import importlib.metadata
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.environments import python_of, requirements_of

WORKERS = 2
BARE = "dataloader"
OURS = "batchmill"


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A tool that is compared.

    Attributes:
        name: Its module in `benchmarks.peers`.
        title: Its name in tables.
        package: The package whose version is reported.
        own_environment: False if it runs in the environment of the project.
        most: The maximum number of files by kind of work, if all files would take too long.
    """

    name: str
    title: str
    package: str
    own_environment: bool = True
    most: Mapping[str, int] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """The version of the tool."""
        if not self.own_environment:
            return importlib.metadata.version(self.package)
        pins = requirements_of(self.name).read_text()
        found = re.search(rf"^{re.escape(self.package)}==(\S+)", pins, re.MULTILINE)
        if not found:
            raise ValueError(f"{requirements_of(self.name)}: has no {self.package}==")
        return found[1]

    def command(self, kind: str, inputs: Path, out: Path) -> list[str]:
        """Return the command. Installs the tool if it is missing. Raises InstallError."""
        if self.name == OURS:
            return _ours(kind, inputs, out)
        python = python_of(self.name) if self.own_environment else Path(sys.executable)
        arguments = [kind, str(inputs), str(out), "--workers", str(WORKERS)]
        return [str(python), "-m", f"benchmarks.peers.{self.name}", *arguments]


def _ours(kind: str, inputs: Path, out: Path) -> list[str]:
    """Return the command of batchmill."""
    command = [sys.executable, "-m", "batchmill", "run", str(inputs), "--output", str(out)]
    command += ["--step", f"benchmarks.peers.steps:{kind}", "--num-workers", str(WORKERS), "--json"]
    return command


CONTENDERS = (
    Contender(name=BARE, title="a bare DataLoader loop", package="torch", own_environment=False),
    Contender(name=OURS, title="batchmill", package="batchmill", own_environment=False),
    Contender(name="ray_data", title="Ray Data, `flat_map`", package="ray"),
    Contender(name="datasets", title="Hugging Face datasets, `map`", package="datasets"),
    Contender(name="datatrove", title="datatrove, local executor", package="datatrove"),
    Contender(name="litdata", title="litdata, `map`", package="litdata"),
    Contender(
        name="data_prep_toolkit", title="data-prep-toolkit on Ray", package="data_prep_toolkit"
    ),
    Contender(
        name="prefect_map",
        title="Prefect, a task run a file",
        package="prefect",
        own_environment=False,
        most={"words": 300},
    ),
)
