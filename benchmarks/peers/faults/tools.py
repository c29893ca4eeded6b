"""The tools whose behaviour is compared, and how each is started."""

import importlib.metadata
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.environments import python_of, requirements_of

HERE = Path(__file__).parent
STEP = HERE / "step.py"
OURS = "batchmill"
_IMPORT = re.compile(r"^from benchmarks\.peers\.faults\.step import .*$", re.MULTILINE)
# A file that does not end in this time is at fault, for tools that have such a limit.
FILE_SECONDS = 10


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool.

    Attributes:
        name: Its script in `scripts`, or `batchmill`.
        title: Its name in tables.
        package: The package whose version is reported. None: Python itself.
        environment: Its requirements in `benchmarks/peers/requirements`. None: this environment.
        limits: Its limits of time and memory for one file.
    """

    name: str
    title: str
    package: str | None = None
    environment: str | None = None
    limits: str = "none"

    @property
    def version(self) -> str:
        """The version of the tool."""
        if self.package is None:
            return f"Python {platform.python_version()}"
        if self.environment is None:
            return importlib.metadata.version(self.package)
        pins = requirements_of(self.environment).read_text()
        found = re.search(rf"^{re.escape(self.package)}==(\S+)", pins, re.MULTILINE)
        if not found:
            raise ValueError(f"{requirements_of(self.environment)}: has no {self.package}==")
        return found[1]

    def command(self, inputs: Path, out: Path, code: Path) -> list[str]:
        """Return the command, whose code is in a folder. Installs the tool. Raises InstallError."""
        if self.name == OURS:
            return [
                *(sys.executable, "-m", "batchmill", "run", str(inputs), "--step", "step:work"),
                *("--output", str(out / "dataset"), "--num-workers", "2"),
                *("--timeout", str(FILE_SECONDS), "--memory-limit", "1G"),
            ]
        python = python_of(self.environment) if self.environment else Path(sys.executable)
        return [str(python), str(code / f"{self.name}.py"), str(inputs), str(out)]

    def write_code(self, code: Path, replace: tuple[str, str] = ("", "")) -> None:
        """Write the script and the function to a folder, with a part of the function replaced."""
        code.mkdir(exist_ok=True)
        step = STEP.read_text()
        if replace[0] not in step:
            raise ValueError(f"{STEP}: has no {replace[0]!r}")
        step = step.replace(*replace) if replace[0] else step
        if self.name == OURS:
            (code / "step.py").write_text(step)
            return
        script = (HERE / "scripts" / f"{self.name}.py").read_text()
        found = _IMPORT.subn(lambda _: step, script)
        if found[1] != 1:
            raise ValueError(f"{self.name}.py: has {found[1]} imports of the function, not one")
        (code / f"{self.name}.py").write_text(found[0])


TOOLS = (
    Tool(name="for_loop", title="`for` loop with `try`"),
    Tool(name="process_pool", title="`ProcessPoolExecutor`"),
    Tool(
        name="joblib_parallel",
        title="joblib",
        package="joblib",
        environment="joblib",
        limits="10 s, no memory",
    ),
    Tool(
        name="hf_datasets",
        title="Hugging Face `datasets.map`",
        package="datasets",
        environment="datasets",
    ),
    Tool(name="datatrove_local", title="datatrove", package="datatrove", environment="datatrove"),
    Tool(
        name="ray_data",
        title="Ray Data",
        package="ray",
        environment="ray_data",
        limits="30 s without progress, no memory",
    ),
    Tool(name="datachain_map", title="DataChain", package="datachain", environment="datachain"),
    Tool(
        name="cocoindex_app",
        title="CocoIndex",
        package="cocoindex",
        environment="cocoindex",
        limits="10 s (cooperative), no memory",
    ),
    Tool(name=OURS, title="batchmill", package="batchmill", limits="10 s, 1 GB"),
)
