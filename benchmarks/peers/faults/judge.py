"""Judge what a tool has left: which files have a right row, and which it reports."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

Row = Mapping[str, Any]

_NAME = re.compile(r"\b\d{6}[a-z]?\.txt\b")
_CHECKED = ("word", "digest")
# More bytes of messages are not read.
_MOST_BYTES = 50_000_000


class Verdict(NamedTuple):
    """The results of a run, and the files that it reports.

    Attributes:
        good: The number of files that are not bad.
        delivered: Good files with a right row, also if they have others.
        lost: Good files without a row.
        wrong: Rows of bad or unknown files, and rows that differ from the right one.
        twice: Files with more than one row.
        named: The bad files that a message or a record names.
        accused: The number of good files that a message or a record names.
    """

    good: int
    delivered: int
    lost: int
    wrong: int
    twice: int
    named: list[str]
    accused: int


def judge(
    rows: Iterable[Row], reported: Iterable[str], right: Mapping[str, Row], bad: Iterable[str]
) -> Verdict:
    """Judge the rows of a tool. A row with an error is a report, no result.

    Args:
        rows: The rows of the table.
        reported: The names of files in messages and records.
        right: The right row of each good file by its name.
        bad: The names of the bad files.

    >>> right = {"1.txt": {"word": "a", "digest": "b"}, "2.txt": {"word": "c", "digest": "d"}}
    >>> judge([{"name": "1.txt", "word": "a", "digest": "b"}], ["3.txt"], right, ["3.txt"])
    Verdict(good=2, delivered=1, lost=1, wrong=0, twice=0, named=['3.txt'], accused=0)
    """
    named, delivered, wrong = set(reported), set(), 0
    found: Counter[str] = Counter()
    for row in rows:
        name = row["name"]
        if row.get("error"):
            named.add(name)
            continue
        found[name] += 1
        expected = right.get(name)
        if expected and all(row.get(column) == expected[column] for column in _CHECKED):
            delivered.add(name)
        else:
            wrong += 1
    return Verdict(
        good=len(right),
        delivered=len(delivered),
        lost=sum(name not in found for name in right),
        wrong=wrong,
        twice=sum(count > 1 for count in found.values()),
        named=sorted(named.intersection(bad)),
        accused=len(named.intersection(right)),
    )


def names_in(texts: Iterable[str]) -> set[str]:
    """Return the names of files in messages.

    >>> sorted(names_in(["000001.txt: bad", "File 'in/000002.txt'", "000003.txtx 0.txt"]))
    ['000001.txt', '000002.txt']
    """
    return {name for text in texts for name in _NAME.findall(text)}


def right_rows(texts: Mapping[str, str], letters: int) -> dict[str, Row]:
    """Return the right rows of good files, by their names."""
    return {name: {"word": text[:letters], "digest": _digest(text)} for name, text in texts.items()}


def read_rows(out: Path) -> list[Row]:
    """Read the rows that a tool has left: Parquet, JSON Lines, or a JSON file for each row.

    Files whose names begin with a dot are temporary, and lines that are cut do not count.
    """
    import pyarrow.parquet as pq

    rows: list[Row] = []
    for path in (
        sorted(out.glob("dataset/metadata.parquet"))
        + sorted(out.glob("rows*/**/*"))
        + (sorted(out.glob("rows.*")))
    ):
        if not path.is_file() or path.name.startswith("."):
            continue
        if path.suffix == ".parquet":
            rows += pq.read_table(path).to_pylist()
            continue
        for line in path.read_text(errors="replace").splitlines():
            with suppress(ValueError):
                rows.append(json.loads(line))
    # Some tools keep the columns of a row under one name.
    return [_flat(row) for row in rows]


def read_messages(out: Path, streams: Iterable[Path]) -> list[str]:
    """Read the output of a command, its logs, and the failures that it has recorded."""
    records = [path for path in (out / "logs").glob("**/*") if path.is_file()]
    records += out.glob("dataset/failures.csv")
    return [
        path.read_bytes()[:_MOST_BYTES].decode(errors="replace") for path in (*streams, *records)
    ]


def _flat(row: Row) -> Row:
    if "name" in row:
        return row
    for value in row.values():
        if isinstance(value, dict) and "name" in value:
            return value
    # DataChain writes the columns of a model as row.name or row__name.
    return {re.split(r"\.|__", key)[-1]: value for key, value in row.items()}


def _digest(text: str) -> str:
    return hashlib.pbkdf2_hmac("sha256", text.encode(), b"faults", 40_000).hex()
