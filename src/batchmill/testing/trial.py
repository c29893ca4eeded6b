"""Run a step over copies of some samples in a separate dataset."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.options.job_options import ExecutionOptions, InputOptions, JobSettings
from batchmill.core.outcome import Outcome
from batchmill.core.planning.job import Job, make_job
from batchmill.core.planning.prepare import Prepared, prepare
from batchmill.core.storage.fingerprints import Fingerprint, fingerprint
from batchmill.runs.execute import InThisProcess, execute
from batchmill.testing.fresh_process import Result, result_of

# A step that hangs fails its test after this time.
_TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A folder with copies of the samples, and a dataset made from them.

    The name of an input is NUMBER/FOLDER/NAME, because samples may have the same file name.
    The `companions` of all samples have the same columns, with None for an empty cell.
    """

    folder: Path
    step: Any
    params: Mapping[str, Any]
    samples: Sequence[Path]
    rows: Sequence[Mapping[str, Any]]
    companions: Sequence[Mapping[str, str | os.PathLike[str] | None]]

    @property
    def names(self) -> list[str]:
        """The names of the inputs, one per sample."""
        return [
            f"{number}/{sample.parent.name or 'root'}/{sample.name}"
            for number, sample in enumerate(self.samples)
        ]

    @property
    def inputs(self) -> Path:
        """The folder with the copies. It holds no other files."""
        return self.folder / "inputs"

    def set_up(self, *, backwards: bool = False) -> None:
        """Copy the samples, and write the manifest that lists them."""
        listed = []
        samples = zip(self.names, self.samples, self.rows, self.companions, strict=True)
        for number, (name, sample, row, files) in enumerate(samples):
            self._copy(sample, name)
            line = {"input": f"inputs/{name}", **row, **files}
            for column, file in files.items():
                if file:
                    copy = f"{number}.{column}/{Path(file).name}"
                    self._copy(file, copy)
                    line[column] = str(self.inputs / copy)
            listed.append(json.dumps(line, default=str) + "\n")
        lines = reversed(listed) if backwards else listed
        (self.folder / "manifest.jsonl").write_text("".join(lines), encoding="utf-8")

    def _copy(self, source: str | os.PathLike[str], name: str) -> None:
        place = self.inputs / name
        place.parent.mkdir(parents=True)
        shutil.copyfile(source, place)

    def job(self, execution: ExecutionOptions = ExecutionOptions()) -> Job:
        """Return the job. Raises OptionError if params cannot be written as JSON."""
        return make_job(
            manifest=str(self.folder / "manifest.jsonl"),
            step=self.step,
            output=str(self.folder / "dataset"),
            params=self.params,
            # A faulty step may remove its input. That is a finding of its own.
            options=JobSettings(
                inputs=InputOptions(allow_missing=True, file_columns=",".join(self.companions[0])),
                execution=execution,
                failures=FailurePolicy(retries=0, timeout=_TIMEOUT_SECONDS),
            ),
        )

    def prepare(self) -> Prepared:
        """Plan the job again, as the next run would."""
        return prepare(self.job())

    def run(self, *, num_workers: int, batch_size: int) -> dict[str, Result]:
        """Execute the pending inputs, and return their results by input."""
        outcomes: list[Outcome] = []
        execution = ExecutionOptions(batch_size=batch_size, num_workers=num_workers)
        runner = InThisProcess(cores=num_workers, on_outcome=outcomes.append)
        execute(prepare(self.job(execution)), runner)
        return {outcome.input.removeprefix("inputs/"): result_of(outcome) for outcome in outcomes}

    def seen(self) -> dict[str, Fingerprint]:
        """Return the fingerprints of all files in the folder of the copies."""
        paths = (Path(place, name) for place, _, names in os.walk(self.inputs) for name in names)
        seen = {str(path.relative_to(self.inputs)): fingerprint(str(path)) for path in paths}
        # A link to an input, or other rights, are no change for the next step.
        return {name: file._replace(ctime_ns=None) for name, file in seen.items()}
