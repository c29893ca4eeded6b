"""IBM's data-prep-toolkit on Ray: a binary transform in several actors.

python -m benchmarks.peers.data_prep_toolkit KIND INPUTS OUT [--workers 2]

The framework reads each file and passes its bytes. The work reads the file again, from the page
cache. An actor collects rows and writes them as one table when it is flushed, as the toolkit's own
`resize` does.
"""

import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
from data_processing.transform import AbstractBinaryTransform, TransformConfiguration
from data_processing.utils import TransformUtils
from data_processing_ray.runtime.ray import (
    DefaultRayTransformRuntime,
    RayTransformLauncher,
    RayTransformRuntimeConfiguration,
)

from benchmarks.peers.command import read_command, tell
from benchmarks.peers.work import SUFFIXES, Row, make_work


class WorkTransform(AbstractBinaryTransform):
    """Does the work, and collects its rows until it is flushed."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.work = make_work(config["kind"])
        self.files = Path(config["files"])
        self.rows: list[Row] = []

    def transform_binary(
        self,
        file_name: str,
        byte_array: bytes,  # noqa: ARG002
    ) -> tuple[list[tuple[bytes, str]], dict[str, Any]]:
        """Write the outputs of a file, and collect its rows."""
        self.rows += self.work(Path(file_name), self.files)
        return [], {}

    def flush_binary(self) -> tuple[list[tuple[bytes, str]], dict[str, Any]]:
        """Return all rows as one table."""
        table = pa.Table.from_pylist(self.rows)
        self.rows = []
        return [(TransformUtils.convert_arrow_to_binary(table), ".parquet")], {}


class WorkConfiguration(TransformConfiguration):
    """The parameters of the transform."""

    def __init__(self, kind: str, files: Path) -> None:
        super().__init__(name="work", transform_class=WorkTransform)
        self.params = {"kind": kind, "files": str(files)}

    def add_input_params(self, parser: Any) -> None:
        """Add no parameters."""

    def apply_input_params(self, args: Any) -> bool:  # noqa: ARG002
        """Accept no parameters."""
        return True


class WorkRuntime(DefaultRayTransformRuntime):
    """Connects the orchestrator to the right Ray cluster."""

    def get_transform_config(self, *arguments: Any, **named: Any) -> dict[str, Any]:
        """Return the configuration of the transform."""
        # Next, it lists its actors through Ray's state API, which fails if several Ray clusters run
        # on the machine.
        os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
        config: dict[str, Any] = super().get_transform_config(*arguments, **named)
        return config


def main() -> None:
    """Launch the transform on its own Ray cluster."""
    task = read_command()
    # Ray has two cores. The orchestrator takes one, and the statistics a quarter.
    options = {"num_cpus": 0.6 / task.workers}
    folders = {"input_folder": str(task.inputs), "output_folder": str(task.table)}
    sys.argv = [
        sys.argv[0],
        "--run_locally=True",
        f"--data_local_config={folders}",
        f"--data_files_to_use={[SUFFIXES[task.kind]]}",
        f"--runtime_num_workers={task.workers}",
        f"--runtime_worker_options={options}",
    ]
    configuration = RayTransformRuntimeConfiguration(
        WorkConfiguration(task.kind, task.files), runtime_class=WorkRuntime
    )
    failed = RayTransformLauncher(configuration).launch()
    if failed:
        raise SystemExit(f"the launcher returned {failed}")
    tell()


if __name__ == "__main__":
    main()
