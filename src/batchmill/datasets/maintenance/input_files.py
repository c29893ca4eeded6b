"""Lists the outputs of one input, and copies them out of a dataset."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.layout import LEDGER_FOLDER
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.recorded_outputs import listed_outputs
from batchmill.errors import OptionError


class InputFile(NamedTuple):
    """An output of an input.

    Attributes:
        name: The name that the step gave it.
        stored: Its name in the dataset: a file, or an address in a pack.
        size: Its size in bytes.
    """

    name: str
    stored: str
    size: int


def input_files(ledger: Ledger, name: str, version: int | str | None = None) -> list[InputFile]:
    """Return the outputs of an input, or the one output with this name.

    Args:
        ledger: The ledger of the dataset.
        name: The input, or an output as in the column `output`.
        version: The number or name of a version. None: the last result of each input.

    Raises:
        OptionError: The dataset has no such input, output or version.
    """
    snapshot = None if version is None else ledger.snapshots.find(version)
    state = ledger.files.read_state(snapshot).listed() if snapshot else ledger.state()
    own = state.of(pa.array([name], pa.string()))
    outputs = listed_outputs((own if len(own) else state).records(["outputs"]))
    if not len(own):
        outputs = outputs.filter(pc.equal(pc.struct_field(outputs, "path"), name))
        if not len(outputs):
            raise OptionError(
                f"{name}: the dataset has no such input or output. Its inputs are in the column "
                "input of metadata.parquet."
            )
    return [
        InputFile("/".join(file["path"].split("/")[2:]), file["pack"] or file["path"], file["size"])
        for file in outputs.to_pylist()
    ]


def copy_files(ledger: Ledger, files: Sequence[InputFile], folder: Path) -> None:
    """Copy outputs into a folder, with the names that the step gave them.

    Raises:
        OptionError: A file exists already, or cannot be written.
        StoreError: An output cannot be read.
    """
    if any((up / LEDGER_FOLDER).is_dir() for up in (folder.resolve(), *folder.resolve().parents)):
        raise OptionError(f"{folder}: is inside a dataset. Name another folder.")
    for file in files:
        path = folder / file.name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with ledger.store.open(file.stored) as content, open(path, "xb") as copy:
                shutil.copyfileobj(content, copy)
        except FileExistsError as error:
            raise OptionError(
                f"{error.filename}: exists already. Remove it, or name another folder."
            ) from error
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise OptionError(f"{path}: {reason}. Name another folder.") from error
