"""Run a step in a fresh process, which imports it by its reference in an empty folder.

The process runs this file as a script. It reads a JSON file with the task, and writes the result to
another JSON file.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from operator import getitem
from pathlib import Path
from typing import Any, NamedTuple

_TIMEOUT_SECONDS = 600


class Result(NamedTuple):
    """The result of one sample.

    Attributes:
        rows: Its rows.
        files: Its files as `WrittenFile` describes them, by name.
        fault: The reason why it is not ok. Empty if it is ok.
    """

    rows: list[dict[str, Any]]
    files: Mapping[str, Mapping[str, Any]]
    fault: str = ""


class Fresh(NamedTuple):
    """The result of a fresh process.

    Attributes:
        results: The results by input.
        description: The step's description.
        left: The files that the step left behind.
        fault: The reason why the step could not be run. Empty if it ran.
    """

    results: Mapping[str, Result]
    description: Mapping[str, Any]
    left: list[str]
    fault: str = ""


def run_fresh(folder: Path, task: Mapping[str, Any], pickled: bytes = b"") -> Fresh:
    """Run a step on some inputs in a new process.

    Args:
        folder: The folder for the files of the process.
        task: `step`, `params`, `search` and `inputs` (name, path, row and companions of each
            input).
        pickled: The step, if the process cannot import it. The task then also has the
            `pickle_digest` and the `description` of the step.

    Returns:
        The result.
    """
    places = {name: folder / name for name in ("work", "temporary", "dataset")}
    for place in places.values():
        place.mkdir(parents=True)
    task_file, answer_file = folder / "task.json", folder / "answer.json"
    paths = [path or os.getcwd() for path in sys.path]
    task = {**task, "paths": paths, "dataset": str(places["dataset"])}
    (folder / "step.pickle").write_bytes(pickled)
    task_file.write_text(json.dumps(task, default=str), encoding="utf-8")
    # With another hash seed, sets of text have another order.
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    try:
        done = subprocess.run(
            # -P keeps the folder of this file out of the import path.
            [sys.executable, "-P", __file__, str(task_file), str(answer_file)],
            cwd=places["work"],
            env={**os.environ, "PYTHONHASHSEED": seed, "TMPDIR": str(places["temporary"])},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Fresh({}, {}, [], f"the process did not end within {_TIMEOUT_SECONDS} s")
    left = [
        f"{'its working directory' if name == 'work' else 'the temporary folder'}: {path.name}"
        for name in ("work", "temporary")
        for path in sorted(places[name].iterdir())
    ]
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        said = lines[-1] if lines else "it wrote no error message"
        return Fresh({}, {}, left, f"the process ended with code {done.returncode}: {said}")
    answer = json.loads(answer_file.read_text(encoding="utf-8"))
    results = {name: Result(*fields) for name, fields in answer["results"].items()}
    return Fresh(results, answer["description"], left, answer["fault"])


def _main(task_file: str, answer_file: str) -> None:
    task = json.loads(Path(task_file).read_text(encoding="utf-8"))
    sys.path += [path for path in task["paths"] if path not in sys.path]
    Path(answer_file).write_text(json.dumps(_answer(task)), encoding="utf-8")


def _answer(task: Mapping[str, Any]) -> dict[str, Any]:
    from batchmill.core.digests import input_id
    from batchmill.core.storage import LocalStore
    from batchmill.core.user_step.load import load_step
    from batchmill.core.user_step.value.shipping import unpickle_step
    from batchmill.errors import BatchmillError
    from batchmill.runs.inputs.call_step import make_dataset
    from batchmill.runs.inputs.run_input import execute_input
    from batchmill.runs.inputs.staging import Companion, Input, open_staging

    try:
        if task["pickle_digest"]:
            pickled = Path(task["dataset"]).with_name("step.pickle").read_bytes()
            step = unpickle_step(
                pickled, task["pickle_digest"], task["description"], search=task["search"]
            )
        else:
            columns = {column for *_, files in task["inputs"] for column in files}
            step = load_step(
                task["step"], task["params"], search=task["search"], file_columns=sorted(columns)
            )
        inputs = [
            Input(
                *(name, input_id(name), path, row),
                companions={
                    column: place and Companion(place, place) for column, place in files.items()
                },
            )
            for name, path, row, files in task["inputs"]
        ]
        made = make_dataset(step, inputs) if step.kind == "dataset" else step.target
    except BatchmillError as error:
        return {"results": {}, "description": {}, "fault": str(error)}
    with open_staging(LocalStore(task["dataset"]), "fresh") as bench:
        look_up: Callable[[int], Any] = partial(getitem, made)
        if step.is_batched:
            # It imports torch, which takes a second.
            from batchmill.runs.inputs.batch_runner import BatchRunner

            runner = BatchRunner(step=step, torch_dataset=made, inputs=inputs, staging=bench)
            look_up = runner.execute_one
        outcomes = [
            execute_input(step, item, bench, partial(look_up, index))
            for index, item in enumerate(inputs)
        ]
    results = {outcome.input: result_of(outcome) for outcome in outcomes}
    return {"results": results, "description": step.description, "fault": ""}


def result_of(outcome: Any) -> Result:
    """Return the result of an input, with the file names that the step used."""
    from batchmill.runs.inputs.single_input import relative_to_own_folder

    outcome = relative_to_own_folder(outcome)
    fault = "" if outcome.kind == "ok" else f"{outcome.kind}: {outcome.reason}"
    files = {file.path: file._asdict() for file in outcome.outputs}
    return Result(json.loads(outcome.rows), files, fault)


if __name__ == "__main__":
    _main(*sys.argv[1:])
