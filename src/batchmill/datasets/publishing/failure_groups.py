"""Group the failed inputs of a dataset by their cause, so that a user reads each cause once.

Two inputs of a group have the same outcome and error, and the same functions of the user raised the
error. Their messages differ only in names and numbers. Files of one kind, such as a suffix or empty
files, are a group of their own if the kind explains the failure: all of them failed, and most
others did not.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from os.path import dirname
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.failure_causes import is_library, normalised
from batchmill.core.ledger.state import OK, State, as_shown
from batchmill.core.outcome import one_line
from batchmill.core.planning.run_spec import RunSpec
from batchmill.core.sizes import counted, list_counts, readable_size
from batchmill.core.storage.large_tables import Column, count_values, slices
from batchmill.core.urls import last_part
from batchmill.datasets.publishing.try_command import try_command

_COLUMNS = (
    "input",
    "outcome",
    "error",
    "message",
    "attempts",
    "seconds",
    "host",
    "traceback",
    "log",
    "result_run",
)
_USED = ("input", "outcome", "error", "message", "traceback", "log", "size", "etag", "carried")
# The kind of an empty file. That of another one is its suffix.
_KIND, _EMPTY = "kind", "empty"
# A kind with fewer files explains nothing.
_LEAST_KIND = 3
_EXAMPLES = 3
# This number of records are Python objects at a time. It limits the memory.
_CHUNK = 10_000
_TEXT_CHARACTERS = 20_000
# A shorter name of an input is often a part of words.
_LEAST_NAME = 4
_FRAME = re.compile(r'File "([^"\n]+)", line \d+,? in (\S+)')
_FATAL = "Fatal Python error"


class FailureGroup(NamedTuple):
    """Failed inputs with the same cause.

    Attributes:
        number: Its number. The largest group has the number 1.
        outcome: The outcome of its inputs.
        error: The type of their error, or the signal.
        message: The first line of the message of the first input.
        place: The innermost function of the user that was running. Empty if it is unknown.
        inputs: The number of its inputs.
        examples: The names of its first inputs.
        smallest: The name of its smallest input.
        sizes: The size of its smallest and its largest input in bytes; -1 without a file.
        kinds: The number of its inputs by suffix, the most frequent first. Empty files are a kind
            of their own.
        folders: The number of folders with its inputs.
        folder: Their folder, if they are in one. Otherwise empty.
        command: The command that executes the step on its smallest input. Empty if `batchmill try`
            cannot do that.
    """

    number: int
    outcome: str
    error: str
    message: str
    place: str
    inputs: int
    examples: tuple[str, ...]
    smallest: str
    sizes: tuple[int, int]
    kinds: tuple[tuple[str, int], ...] = ()
    folders: int = 1
    folder: str = ""
    command: str = ""

    @property
    def reason(self) -> str:
        """The error, its message, and the function."""
        return one_line(self.error, self.message) + (f" (in {self.place})" if self.place else "")

    @property
    def who(self) -> str:
        """The name of the input, or the number of inputs."""
        return self.examples[0] if self.inputs == 1 else counted(self.inputs, "input")

    @property
    def names(self) -> str:
        """The names of the first inputs."""
        more = ", ..." if self.inputs > len(self.examples) else ""
        return f"{', '.join(self.examples)}{more}"

    @property
    def described(self) -> str:
        """The kinds, the sizes and the folders of the inputs, as text."""
        kinds = {name or "without suffix": count for name, count in self.kinds[:_EXAMPLES]}
        kinds["others"] = sum(count for _, count in self.kinds[_EXAMPLES:])
        parts = [list_counts(kinds)] if len(self.kinds) > 1 else []
        low, high = (readable_size(size) for size in self.sizes)
        if self.sizes[0] >= 0:
            parts.append(low if low == high else f"{low} to {high}")
        if self.folders > 1:
            parts.append(f"in {self.folders:,} folders")
        elif self.folder:
            parts.append(f"in {self.folder}")
        return "; ".join(parts)

    def lines(self) -> list[str]:
        """Return a few lines of text about the group."""
        lines = [f"  group {self.number}: {self.who}: {self.outcome}: {self.reason}"]
        if self.inputs > 1:
            described = f" ({self.described})" if self.described else ""
            lines.append(f"      {self.names}{described}")
        return [*lines, *([f"      Try it: {self.command}"] if self.command else [])]


class Failures(NamedTuple):
    """The failed inputs of a dataset.

    Attributes:
        table: One row per input, sorted by name, with the columns of failures.csv.
        groups: The groups, the largest first. The column `group` of the table has their numbers.
    """

    table: pa.Table
    groups: tuple[FailureGroup, ...]


class _Key(NamedTuple):
    """The properties that all inputs of a group share."""

    outcome: str
    error: str
    message: str
    frames: tuple[str, ...]
    kind: str


@dataclass
class _Members:
    """The inputs of one kind in a group, while the records are read."""

    index: int
    key: _Key
    first: Mapping[str, Any]
    inputs: int = 0
    examples: list[str] = field(default_factory=list)
    folders: set[str] = field(default_factory=set)
    smallest: Mapping[str, Any] | None = None
    largest: int = -1

    def add(self, record: Mapping[str, Any]) -> None:
        self.inputs += 1
        self.folders.add(dirname(record["input"]))
        if len(self.examples) < _EXAMPLES:
            self.examples.append(record["input"])
        self.largest = max(self.largest, record["size"])
        # A file that is missing shows nothing.
        if record["size"] >= 0 and (not self.smallest or record["size"] < self.smallest["size"]):
            self.smallest = record


def read_failures(state: State, spec: RunSpec | None = None) -> Failures:
    """Read the inputs of the last manifest that are not ok, and group them.

    Equal records have equal numbers of groups, in every process.

    Args:
        state: The dataset's state.
        spec: The settings of the last run, for the commands. None: the groups have no commands.
    """
    # Most records are those of inputs that are ok.
    is_odd = pc.or_(pc.not_equal(state.table["outcome"], OK), pc.is_valid(state.table["absence"]))
    odd = state.select(is_odd).listed()
    records = as_shown(odd.records([*_COLUMNS, *_USED, "absence", "run"])).sort_by("input")
    by_key: dict[_Key, _Members] = {}
    kinds = _kinds(records["input"], records["size"])
    used = records.select(list(_USED)).append_column(_KIND, kinds)
    batches = used.to_batches(max_chunksize=_CHUNK)
    dicts = (record for batch in batches for record in batch.to_pylist())
    indices = np.array([_add(record, by_key) for record in dicts], np.int64)
    causes = list(_by_cause([*by_key.values()], state))
    numbers = np.zeros(len(by_key), np.int32)
    groups = []
    for number, members in enumerate(sorted(causes, key=_largest_first), 1):
        numbers[[part.index for part in members]] = number
        groups.append(_group(number, members, spec))
    table = records.select(list(_COLUMNS))
    return Failures(table.add_column(2, "group", pa.array(numbers[indices])), tuple(groups))


def group_lines(groups: Sequence[FailureGroup], shown: int) -> list[str]:
    """Return lines about the first `shown` groups, and the number of the others."""
    lines = [line for group in groups[:shown] for line in group.lines()]
    more = len(groups) - shown
    return [*lines, *([f"  ... and {counted(more, 'more group')}"] if more > 0 else [])]


def _add(record: Mapping[str, Any], by_key: dict[_Key, _Members]) -> int:
    """Add a record to its group, and return the index of the group."""
    key = _key(record)
    members = by_key.setdefault(key, _Members(len(by_key), key, record))
    members.add(record)
    return members.index


def _kinds(names: Column, sizes: Column) -> Column:
    """Return the kind of each input: its suffix without numbers, or that it is empty."""
    matches = pc.extract_regex(pc.utf8_lower(names), r"(?P<suffix>\.[^./]+)$")
    suffixes = pc.struct_field(matches, "suffix").fill_null("")
    return pc.if_else(pc.equal(sizes, 0), _EMPTY, pc.replace_substring_regex(suffixes, r"\d+", "*"))


def _by_cause(parts: Sequence[_Members], state: State) -> Iterator[list[_Members]]:
    """Yield the members of each group: those with one cause, or of a kind that explains it."""
    causes: dict[_Key, list[_Members]] = {}
    for part in parts:
        causes.setdefault(part.key._replace(kind=""), []).append(part)
    totals: Counter[str] = Counter()
    if any(len(kinds) > 1 for kinds in causes.values()):
        for rows in slices(state.listed().table.select(["input", "size"])):
            totals += count_values(_kinds(rows["input"], rows["size"]))
    for kinds in causes.values():
        failed, others = sum(part.inputs for part in kinds), []
        for part in kinds:
            total = totals[part.key.kind]
            is_explained = part.inputs == total >= _LEAST_KIND
            # If most inputs of other kinds failed as well, the kind is not the reason.
            if is_explained and 2 * (failed - total) < totals.total() - total:
                yield [part]
            else:
                others.append(part)
        if others:
            yield others


def _largest_first(members: Sequence[_Members]) -> tuple[int, str]:
    return -sum(part.inputs for part in members), min(part.first["input"] for part in members)


def _key(record: Mapping[str, Any]) -> _Key:
    name = last_part(record["input"])
    message = record["message"].strip().partition("\n")[0]
    if len(name) >= _LEAST_NAME:
        message = message.replace(name, "*")
    return _Key(
        outcome=record["outcome"],
        error=record["error"],
        message=normalised(message),
        frames=own_frames(record["traceback"], record["log"], record["outcome"]),
        kind="" if record["outcome"] == "missing" else record[_KIND],
    )


def own_frames(traceback: str, log: str, outcome: str) -> tuple[str, ...]:
    """Return the functions of the user in a traceback, the outermost first.

    The functions of libraries are left out, unless there are no others. A recursive function counts
    once. After a crash, the stack is in the log. A timeout can stop a step anywhere, so its stack
    is no cause.
    """
    frames = _FRAME.findall(traceback[-_TEXT_CHARACTERS:])
    if outcome == "crashed" and _FATAL in log:
        stack = log.rpartition(_FATAL)[2].partition("Current thread")[2].partition("\n\n")[0]
        frames = _FRAME.findall(stack)[::-1]
    user_frames = [frame for frame in frames if not is_library(frame[0])] or frames[:1]
    return tuple(dict.fromkeys(_frame_name(*frame) for frame in user_frames))


@lru_cache(1000)
def _frame_name(path: str, function: str) -> str:
    name = normalised(last_part(path))
    # The file of a notebook's cell has a number as its name.
    return function if name.startswith("*") else f"{function}, {name}"


def _group(number: int, members: Sequence[_Members], spec: RunSpec | None) -> FailureGroup:
    key = members[0].key
    first = min(members, key=lambda part: part.first["input"]).first
    with_file = [part.smallest for part in members if part.smallest]
    smallest = min(with_file, key=itemgetter("size"), default=None)
    kinds = Counter({part.key.kind: part.inputs for part in members})
    folders = set[str]().union(*(part.folders for part in members))
    return FailureGroup(
        number=number,
        outcome=key.outcome,
        error=key.error,
        message=one_line("", first["message"]).removeprefix(": "),
        place=key.frames[-1] if key.frames else "",
        inputs=kinds.total(),
        examples=tuple(sorted(name for part in members for name in part.examples)[:_EXAMPLES]),
        smallest=(smallest or first)["input"],
        sizes=(smallest["size"] if smallest else -1, max(part.largest for part in members)),
        kinds=tuple(kinds.most_common()),
        folders=len(folders),
        folder=next(iter(folders)) if len(folders) == 1 else "",
        command=try_command(spec, smallest, key.outcome) if spec and smallest else "",
    )
