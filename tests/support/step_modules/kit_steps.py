"""Steps that keep the contract of steps, and steps that each break one rule of it."""

import hashlib
import itertools
import os
import random
import tempfile
from pathlib import Path

_calls = itertools.count()


def copy(source: Path, out: Path, *, upper: bool = False):
    text = source.read_text()
    (out / "copy.txt").write_text(text.upper() if upper else text)
    return {"output": "copy.txt", "length": len(text)}


def labelled(source: Path, row):
    return {"of": row["label"], "folder": source.parent.name}


def typed(source: Path, row):
    return {"type": type(row["number"]).__name__, "missing": row["other"] is None}


class Letters:
    def __init__(self, inputs, labels=None):
        self.inputs = inputs
        self.labels = labels

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return {"letters": len(Path(self.inputs[index]).read_text())}


class ByPosition(Letters):
    def __init__(self, inputs):
        super().__init__(inputs)

    def __getitem__(self, index):
        return {"index": index}


items = [{"item": 1}, {"item": 2}]


def cleans_up(source: Path):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "x").write_text("x")
    return {"value": float("nan")}


def raises(source: Path):
    raise ValueError("bad header")


def writes_unnamed(source: Path, out: Path):
    (out / "x").write_text("x")


def holds_an_object(source: Path):
    return {"thing": object()}


def dies(source: Path):
    os._exit(3)


def random_row(source: Path):
    return {"value": random.random()}


def random_bytes(source: Path, out: Path):
    (out / "x").write_bytes(random.randbytes(8))
    return {"output": "x"}


def order_of_a_set(source: Path):
    return {"letters": "".join({*"abcdefghij"})}


def returns_its_path(source: Path):
    return {"path": str(source)}


def counts_calls(source: Path):
    return {"call": next(_calls)}


def needs_the_working_directory(source: Path):
    return {"text": Path("beside_the_test.txt").read_text()}


def changes_its_input(source: Path):
    source.write_text(source.read_text() + "!")
    return {"length": 3}


def removes_its_input(source: Path):
    source.unlink()


def writes_beside_its_input(source: Path):
    source.with_suffix(".json").write_text("{}")


def writes_into_the_dataset(source: Path, out: Path):
    (out.parents[3] / "files" / "notes.txt").write_text("x")


def writes_here(source: Path, *, folder: str = "."):
    Path(folder, "left.txt").write_text("x")


def leaves_temporary_files(source: Path):
    os.close(tempfile.mkstemp()[0])


def once_only(source: Path, out: Path, *, marks: str):
    """Fail if the same input is executed again."""
    mark = Path(marks, hashlib.sha256(str(source).encode()).hexdigest())
    mark.touch(exist_ok=False)
    (out / "x").write_text("x")
    return {"output": "x"}


def other_identity(source: Path):
    return None


other_identity.version = os.getpid()  # type: ignore[attr-defined]


def removes_what_others_wrote(source: Path, out: Path):
    for other in out.parents[3].glob("files/*/x"):
        other.unlink()
    for name in ("x", "y"):
        (out / name).write_text("x")
        yield {"output": name}


class Batched:
    """A batch step."""

    def __init__(self, inputs):
        self.inputs = inputs

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return Path(self.inputs[index]).stat().st_size

    def process_batch(self, batch, outs):
        for size, out in zip(batch.tolist(), outs, strict=True):
            (out / "size.txt").write_text(str(size))
        return {"output": ["size.txt"] * len(outs), "size": batch}


def reads_mask(source, mask):
    return {"mask": mask and mask.read_text()}


def reads_both(source, mask):
    return {"texts": f"{source.read_text()} {mask.read_text()}"}
