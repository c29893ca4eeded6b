"""The state of a dataset: its record of each input after a run.

A state is a table with a row for each known input: the outcome that counts, the result that the
input keeps, its absence. It has the values that a plan compares. For the others, such as the rows
and the log, it has the part and the row in it, because a part is never written again.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.ledger.parts import PART_SCHEMA, fetch
from batchmill.core.storage import Store
from batchmill.core.storage.large_tables import Column, select, take, with_column
from batchmill.core.storage.name_search import rows_of

OK = "ok"
# The absence of an input that the last manifest does not list.
WITHDRAWN = "withdrawn"
# The absence of an input with an earlier result whose file cannot be found. It is its outcome, too.
MISSING = "missing"
# The column with the set of libraries that made a result.
LIBRARIES = "libraries"
_RESULT_STAYS = "Its earlier result stays in the dataset."
# The columns of a record that are in the state itself.
COPIED = (
    "input",
    "outcome",
    "attempts",
    "size",
    "mtime_ns",
    "etag",
    "ctime_ns",
    "companions",
    "content",
    "step",
    "run",
)
STATE_SCHEMA = pa.schema(
    [
        *(PART_SCHEMA.field(name) for name in COPIED),
        # The run whose rows and outputs an input keeps that is not ok now. Usually null.
        ("result_run", pa.int32()),
        # WITHDRAWN or MISSING; null for an input that is there.
        ("absence", pa.string()),
        # Which file is missing, if the absence is MISSING.
        ("note", pa.string()),
        # The number of the part with the record of the outcome, and the row in it.
        ("part", pa.int32()),
        ("row", pa.int32()),
        # Those of the record whose rows and outputs the input keeps. Null if `result_run` is.
        ("result_part", pa.int32()),
        ("result_row", pa.int32()),
        # The place of the record with the result before it was merged. A result keeps its identity.
        ("origin_part", pa.int32()),
        ("origin_row", pa.int32()),
        # The number of the set of libraries of the outcome, and of the result as above.
        ("libraries", pa.int32()),
        ("result_libraries", pa.int32()),
    ]
)
# The columns of a state that `State.records` returns, and those of its parts.
_SHOWN = (*COPIED, "result_run", "absence", LIBRARIES)
_OF_RESULT = ("rows", "outputs")
# The columns with parts and rows.
PLACES = (("part", "row"), ("result_part", "result_row"), ("origin_part", "origin_row"))
_NULL = pa.scalar(None, pa.int32())


@dataclass(frozen=True, eq=False)
class State:
    """The record of each input of a dataset. It never changes: methods return another state.

    Attributes:
        store: The store of the dataset.
        table: A row for each input, with the columns of STATE_SCHEMA.
        parts: The names of the parts that the table refers to, also those before a merge.
        libraries: The sets of libraries that the table refers to, as JSON objects.
        file: The `name` and the `content` of the file that has this state. None without such a
            file.
    """

    store: Store
    table: pa.Table = field(default_factory=STATE_SCHEMA.empty_table)
    parts: Sequence[str] = ()
    file: Mapping[str, str] | None = None
    libraries: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.table)

    @property
    def names(self) -> pa.ChunkedArray:
        """The names of the inputs."""
        return self.table["input"]

    @property
    def named_parts(self) -> set[str]:
        """The names of the parts that have the records."""
        return {self.parts[number] for number in self._numbers("part", "result_part")}

    def records(self, columns: Iterable[str]) -> pa.Table:
        """Return what is recorded of each input, in the order of the state.

        `rows` and `outputs` are those of the result that the input keeps.

        Args:
            columns: Columns of PART_SCHEMA, `result_run` and `absence`. They have this order.
                `libraries` has numbers of sets.

        Raises:
            LedgerError: A part is damaged.
            StoreError: A part cannot be read.
        """
        wanted = [*dict.fromkeys(columns)]
        values = {name: self.table[name] for name in wanted if name in _SHOWN}
        of_outcome = [name for name in wanted if name not in (*_SHOWN, *_OF_RESULT)]
        of_result = [name for name in wanted if name in _OF_RESULT]
        outcome_places = (self.table["part"], self.table["row"])
        for names, places in ((of_outcome, outcome_places), (of_result, result_places(self.table))):
            if names:
                records = fetch(self.store, self.parts, *places, names)
                values |= {name: records[name] for name in names}
        if "message" in values:
            # An `ok` record has a message only while its file is missing.
            values["message"] = pc.coalesce(
                self.table["note"].cast(pa.large_string()), values["message"]
            )
        return pa.table({name: values[name] for name in wanted})

    def listed(self) -> "State":
        """Return the inputs that the manifest of the last run lists."""
        return self.select(pc.not_equal(self.table["absence"].fill_null(""), WITHDRAWN))

    def select(self, mask: Column | np.ndarray) -> "State":
        """Return the inputs for which a mask is true."""
        return self._with(select(self.table, mask))

    def of(self, names: Column) -> "State":
        """Return some inputs by their names. Those without a record are left out."""
        return self.select(rows_of(self.names, names).is_valid())

    def not_of(self, names: Column) -> "State":
        """Return the inputs without those with some names."""
        return self.select(rows_of(self.names, names).is_null())

    def of_run(self, run: int) -> "State":
        """Return the inputs whose outcome is of one run."""
        return self.select(pc.equal(self.table["run"], run))

    def changed(self, names: Column, **columns: Any) -> "State":
        """Return the state with other values in some columns of some inputs.

        Args:
            names: The names of the inputs. Those without a record are ignored.
            **columns: A column with a value for each name, or one value for all of them.
        """
        place = rows_of(names, self.names)
        is_known = place.is_valid()
        if not pc.any(is_known).as_py():
            return self
        rows = place.drop_null()
        changed = take(self.table, rows)
        for name, values in columns.items():
            if isinstance(values, pa.Array | pa.ChunkedArray):
                values = values.filter(is_known)
            changed = with_column(changed, name, values)
        return self._with(pa.concat_tables([self._without(rows).table, changed]))

    def with_outcomes(self, now: "State") -> "State":
        """Return the state after a later run.

        An input that is not ok keeps its earlier result. If only its file could not be found, it
        also keeps its outcome: a file that was moved away during a run must not change that.

        Args:
            now: The outcomes of the run.
        """
        new = now.table
        place = rows_of(new["input"], self.names)
        before = take(self.table, place)
        keeps = pc.and_(has_result(before), pc.not_equal(new["outcome"], OK))
        vanished = pc.and_(keeps, pc.equal(new["outcome"], MISSING))
        first = len(self.parts)
        new = with_column(new, "part", pc.add(new["part"], first))
        libraries, place_of = _joined(self.libraries, now.libraries)
        new = with_column(new, LIBRARIES, place_of.take(new[LIBRARIES].combine_chunks()))
        for column in ("run", "part", "row", LIBRARIES):
            name = f"result_{column}"
            kept = pc.coalesce(before[name], before[column])
            new = with_column(new, name, pc.if_else(keeps, kept, _NULL))
        for name in PLACES[2]:
            new = with_column(new, name, pc.if_else(keeps, before[name], _NULL))
        if pc.any(vanished).as_py():
            # The step was not started in this run. A run after the file is back must start that of
            # an input that had failed, so its size becomes another one.
            stays = before.filter(vanished)
            notes = now.select(vanished).records(["message"])["message"]
            run = new.filter(vanished)["run"]
            size = pc.if_else(pc.equal(stays["outcome"], OK), stays["size"], -1)
            changes = {"attempts": 0, "absence": MISSING, "note": notes, "run": run, "size": size}
            for name, values in changes.items():
                stays = with_column(stays, name, values)
            new = pa.concat_tables([new.filter(pc.invert(vanished)), stays])
        table = pa.concat_tables([self._without(place.drop_null()).table, new])
        return State(self.store, table, (*self.parts, *now.parts), libraries=libraries)

    def with_libraries(self, names: Column, sets: Sequence[str]) -> "State":
        """Return the state with other libraries of some inputs.

        Args:
            names: The names of the inputs.
            sets: A set for each one in `libraries`.
        """
        libraries, place_of = _joined(self.libraries, sets)
        numbers = take(self.table, rows_of(names, self.names))[LIBRARIES]
        state = self.changed(names, libraries=place_of.take(numbers.combine_chunks()))
        return replace(state, libraries=libraries)

    def without_results(self, names: Column) -> "State":
        """Return the state without the earlier results of some inputs that are not ok."""
        columns = ("result_run", "result_libraries", *PLACES[1], *PLACES[2])
        return self.changed(names, **dict.fromkeys(columns))

    def used(self) -> "State":
        """Return the state without the parts and libraries that it does not refer to."""
        of_parts, of_libraries = [part for part, _ in PLACES], [LIBRARIES, "result_libraries"]
        parts, libraries = self._numbers(*of_parts), self._numbers(*of_libraries)
        table = _renumbered(self.table, of_parts, parts, len(self.parts))
        return replace(
            self,
            table=_renumbered(table, of_libraries, libraries, len(self.libraries)),
            parts=[self.parts[number] for number in parts],
            libraries=[self.libraries[number] for number in libraries],
        )

    def without_parts(self, gone: Container[str]) -> "State":
        """Return the inputs whose records are not in some parts."""
        numbers = [number for number, name in enumerate(self.parts) if name in gone]
        if not numbers:
            return self
        lost = pa.array(numbers, pa.int32())
        masks = [pc.is_in(self.table[name], value_set=lost) for name in ("part", "result_part")]
        return self.select(pc.invert(reduce(pc.or_, masks)))

    def _numbers(self, *columns: str) -> np.ndarray:
        """Return the numbers of the parts in some columns."""
        numbers = [pc.unique(self.table[name]).drop_null().to_numpy() for name in columns]
        return np.unique(np.concatenate(numbers)).astype(np.int64)

    def _with(self, table: pa.Table) -> "State":
        return replace(self, table=table, file=None)

    def _without(self, rows: pa.Array) -> "State":
        if not len(rows):
            return self
        stays = np.ones(len(self.table), bool)
        stays[rows.to_numpy()] = False
        return self.select(stays)


def _renumbered(table: pa.Table, columns: Sequence[str], used: np.ndarray, count: int) -> pa.Table:
    """Return a table whose columns have the places of numbers in `used`, instead of the numbers."""
    if len(used) < count:
        new = np.zeros(count, np.int32)
        new[used] = np.arange(len(used))
        for name in columns:
            table = with_column(table, name, pa.array(new).take(table[name].combine_chunks()))
    return table


def _joined(first: Sequence[str], second: Sequence[str]) -> tuple[Sequence[str], pa.Array]:
    """Return the texts of both sequences once, and the place of each text of the second."""
    places = {text: place for place, text in enumerate(first)}
    of_second = [places.setdefault(text, len(places)) for text in second]
    return [*places], pa.array(of_second, pa.int32())


def result_places(table: pa.Table) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Return the part and the row of the result of each input of a state."""
    pairs = zip(*PLACES[:2], strict=True)
    part, row = (pc.coalesce(table[result], table[outcome]) for outcome, result in pairs)
    return part, row


def made_with(table: pa.Table) -> pa.ChunkedArray:
    """Return the number of the set of libraries that made the result of each input of a state."""
    return pc.coalesce(table["result_libraries"], table[LIBRARIES])


def has_result(records: pa.Table) -> pa.ChunkedArray:
    """Return which records have rows and outputs: of this run, or of the `result_run`."""
    is_ok = pc.equal(records["outcome"], OK).fill_null(False)
    return pc.or_(is_ok, pc.is_valid(records["result_run"]))


def as_shown(records: pa.Table) -> pa.Table:
    """Return records with the outcomes that users see.

    An input whose file cannot be found is `missing`, although its record has an earlier result.

    Args:
        records: Records with the column `absence`.
    """
    is_missing = pc.equal(records["absence"], MISSING).fill_null(False)
    now: dict[str, Any] = {"outcome": MISSING, "error": "FileNotFoundError", "size": -1}
    now |= {"traceback": "", "log": ""}
    if "message" in records.column_names:
        stays, space = (pa.scalar(text, pa.large_string()) for text in (_RESULT_STAYS, " "))
        now["message"] = pc.binary_join_element_wise(records["message"], stays, space)
    if {"result_run", "run", "attempts"} <= {*records.column_names}:
        # A record without attempts has the number of a later run.
        was_executed = pc.and_(is_missing, pc.greater(records["attempts"], 0))
        is_own = pc.and_(was_executed, records["result_run"].is_null())
        shown = pc.if_else(is_own, records["run"], records["result_run"])
        records = with_column(records, "result_run", shown)
    for name, value in now.items():
        if name in records.column_names:
            records = with_column(records, name, pc.if_else(is_missing, value, records[name]))
    return records
