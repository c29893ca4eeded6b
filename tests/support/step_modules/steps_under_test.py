"""Steps of all kinds. Tests refer to them by name."""

import dataclasses
import enum
import os
from pathlib import Path
from typing import Annotated, BinaryIO, Literal, NamedTuple

from batchmill.core.user_step.tracked_file import ContentCounts


class Clip(NamedTuple):
    start: float
    end: float


@dataclasses.dataclass
class Page:
    number: int
    text: str


class Colour(enum.Enum):
    RED = "red"


def names(source: Path):
    files = (path for path in source.rglob("*") if path.is_file())
    return {"names": " ".join(sorted(str(path.relative_to(source)) for path in files))}


def size(source: BinaryIO):
    return {"size": len(source.read())}


def length(source: Path):
    return {"length": len(source.read_text())}


def copy(source: Path, out: Path, *, times: int = 1):
    for i in range(times):
        (out / f"{i}.txt").write_text(source.read_text())
        yield {"output": f"{i}.txt", "copy": i}


_calls = []


def die_once(source: Path, out: Path, *, died: str):
    """Kill the worker at the second input of the first worker."""
    _calls.append(source)
    if len(_calls) == 2 and not Path(died).exists():
        Path(died).touch()
        os._exit(3)
    yield from copy(source, out)


def labelled(source: Path, row: dict):
    return {"twice": row["label"] * 2}


def annotated(source, *, seconds: float, mode: Literal["fast", "slow"] = "fast", name: str = "x"):
    return {"seconds": seconds, "mode": mode, "name": name}


def with_words(source, *, words: Annotated[str, ContentCounts()] | None = None):
    pass


def counting(source, *, words: Annotated[list[str], ContentCounts()]):
    return {"words": len(words)}


def anything(source, **options):
    return options


def two_inputs(source, target):
    return None


def swapped(out, source):
    return []


def positional(source, k, /):
    return None


def no_input():
    return None


def fails_on_b(source: Path, out: Path):
    (out / "half.txt").write_text("half")
    if source.name == "b.txt":
        raise ValueError("bad header\nand more")
    return {"output": "half.txt"}


class Splitter:
    """A Dataset only by its methods. It imports neither torch nor batchmill."""

    def __init__(self, inputs, size=2):
        self.inputs = inputs
        self.size = size

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        with open(self.inputs[index]) as file:
            return file.read()[: self.size]


class Labelled(Splitter):
    def __init__(self, inputs, labels):
        super().__init__(inputs)
        self.labels = labels

    def __getitem__(self, index):
        return {"label_of": self.labels[self.inputs[index]]}


class OneShort(Splitter):
    def __len__(self):
        return len(self.inputs) - 1


class NoDataset:
    pass


letters = ["one", "two", "three", "four"]
