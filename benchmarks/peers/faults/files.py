"""The files of a trial: real small text files, some of which are bad."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

WORDS = ("river", "stone", "cloud", "amber", "field", "north", "lemon", "cedar", "flint", "ocean")
KINDS = ("raise", "crash", "hang", "memory")


class Files(NamedTuple):
    """The texts of the good files, and the kinds of the bad ones, by name."""

    good: dict[str, str]
    bad: dict[str, str]


def make_files(folder: Path, count: int, bad: Mapping[str, int], seed: int) -> Files:
    """Write files, of which some are bad.

    Args:
        folder: The folder, which is created.
        count: The number of all files.
        bad: The number of files of each bad kind. Most files come after them.
        seed: Chooses the places of the bad files.
    """
    folder.mkdir(parents=True)
    kinds = [kind for kind in KINDS for _ in range(bad.get(kind, 0))]
    places = random.Random(seed).sample(range(count // 10, 3 * count // 10), len(kinds))
    files = Files({}, {f"{place:06d}.txt": kind for place, kind in zip(places, kinds, strict=True)})
    for number in range(count):
        name = f"{number:06d}.txt"
        kind = files.bad.get(name)
        if kind == "raise":
            # Not UTF-8. The error does not name the file.
            (folder / name).write_bytes(b"\xff\xfe damaged \x80")
        elif kind:
            (folder / name).write_text(f"{kind}\n")
        else:
            files.good[name] = add_file(folder / name, number)
    return files


def add_file(path: Path, number: int) -> str:
    """Write a good file. Returns its text."""
    words = [WORDS[(number * factor) % len(WORDS)] for factor in (1, 3, 7)]
    text = f"{words[0]} {number} {words[1]} {words[2]}\n"
    path.write_text(text)
    return text
