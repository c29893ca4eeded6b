"""Compare the libraries that made the results of a dataset with those of this machine."""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.ledger.state import State, has_result, made_with
from batchmill.core.sizes import counted
from batchmill.core.storage.large_tables import count_values, select
from batchmill.core.user_step.libraries import present_versions


@dataclass(frozen=True)
class LibraryChange:
    """A library with another version than when some results were made.

    Attributes:
        name: The library.
        before: The versions that made the results.
        now: The version on this machine.
        results: The number of these results.
    """

    name: str
    before: Sequence[str]
    now: str
    results: int

    @property
    def versions(self) -> str:
        """The versions before and now, as text."""
        return f"{self.name} {', '.join(self.before)} -> {self.now}"

    @property
    def text(self) -> str:
        """The change, in one line."""
        old = "old one" if len(self.before) == 1 else "old ones"
        return f"libraries: {self.versions} ({counted(self.results, 'result')} of the {old})"


@dataclass(frozen=True)
class RecordedLibraries:
    """The sets of libraries that made results, and the present versions.

    Attributes:
        sets: The versions of each set, by library.
        now: The present versions, by library. Without those that are not installed here.
        results: The number of results by the number of their set.
    """

    sets: Sequence[Mapping[str, str]]
    now: Mapping[str, str]
    results: Mapping[int, int]

    @classmethod
    def read(cls, state: State, steps: Collection[str], target: Any) -> "RecordedLibraries":
        """Find the libraries that made the results of some steps.

        Args:
            state: The state of the dataset.
            steps: The identities of the steps.
            target: The present step.
        """
        is_theirs = pc.is_in(state.table["step"], value_set=pa.array(sorted(steps), pa.string()))
        results = _count_sets(state.select(is_theirs))
        sets = [json.loads(text) for text in state.libraries]
        names = {name for number in results for name in sets[number]}
        return cls(sets, present_versions(names, target), results)

    def others(self) -> list[int]:
        """Return the numbers of the sets that differ from the present versions."""
        return [number for number, before in enumerate(self.sets) if before != self._now(before)]

    def present(self) -> list[str]:
        """Return each set with the present versions, as a JSON object."""
        return [json.dumps(self._now(before), sort_keys=True) for before in self.sets]

    def changes(self) -> list[LibraryChange]:
        """Return the libraries with another version than the results."""
        changes = []
        for name, counts in _by_version(self.sets, self.results).items():
            now = self.now.get(name)
            others = {version: count for version, count in counts.items() if version != now}
            if now is not None and others:
                changes.append(LibraryChange(name, [*others], now, sum(others.values())))
        return changes

    def _now(self, before: Mapping[str, str]) -> dict[str, str]:
        """Return a set with the present versions."""
        return {name: self.now.get(name, version) for name, version in before.items()}


def versions_in(state: State) -> dict[str, dict[str, int]]:
    """Return the number of results that each version of a library made, by library."""
    return _by_version([json.loads(text) for text in state.libraries], _count_sets(state))


def _count_sets(state: State) -> dict[int, int]:
    """Return the number of results in the tables by the number of their set of libraries."""
    table = state.listed().table
    return dict(count_values(made_with(select(table, has_result(table)))))


def _by_version(
    sets: Sequence[Mapping[str, str]], results: Mapping[int, int]
) -> dict[str, dict[str, int]]:
    counts: Counter[tuple[str, str]] = Counter()
    for number, count in results.items():
        counts.update(dict.fromkeys(sets[number].items(), count))
    by_library: dict[str, dict[str, int]] = {}
    for (name, version), count in sorted(counts.items()):
        by_library.setdefault(name, {})[version] = count
    return by_library
