"""Requests and answers between a run and its shards, as files in the ledger.

The shards may run on other machines. Every machine can read the files, and the files remain after a
process is killed. Every method raises StoreError if the dataset cannot be read or written.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from batchmill.core import layout
from batchmill.core.storage import Store, if_exists


class Usage(NamedTuple):
    """The resources that the workers of a run have used.

    Attributes:
        cpu_seconds: The CPU time of all workers.
        memory_bytes: The most memory of one worker.
    """

    cpu_seconds: float
    memory_bytes: int


class RunControl:
    """The requests and answers of a dataset's runs.

    Args:
        store: The store of the dataset.

    The methods take the number of a run, and the key of a shard.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def request_stop(self, run: int, reason: str = "") -> None:
        """Request that all shards of a run commit their finished outcomes and end."""
        self._store.write(self._name(run, layout.STOP), reason.encode())

    def stop_requested(self, run: int) -> bool:
        """Return whether a stop of a run was requested."""
        return self._store.exists(self._name(run, layout.STOP))

    def stop_reason(self, run: int) -> str:
        """Return why a stop of a run was requested; empty without a special reason."""
        return self._read(self._name(run, layout.STOP)) or ""

    def close(self, run: int) -> None:
        """Record that a run accepts outcomes no longer, because its tables are made now."""
        self._store.write(self._name(run, layout.CLOSED), b"")

    def is_closed(self, run: int) -> bool:
        """Return whether a run accepts outcomes no longer."""
        return self._store.exists(self._name(run, layout.CLOSED))

    def record_flow_run(self, run: int, identifier: str) -> None:
        """Record the id of the flow run that executes a run."""
        self._store.write(self._name(run, layout.FLOW_RUN), identifier.encode())

    def read_flow_run(self, run: int) -> str | None:
        """Return the id of the flow run that executes a run; None if it was not recorded."""
        return self._read(self._name(run, layout.FLOW_RUN))

    def record_forced(self, run: int, after: int) -> None:
        """Record that a run is forced: it ignores the outcomes of the runs up to `after`."""
        self._store.write(self._name(run, layout.FORCED), str(after).encode())

    def read_forced(self, run: int) -> int | None:
        """Return the last run whose outcomes a forced run ignores; None if it is not forced."""
        after = self._read(self._name(run, layout.FORCED))
        return None if after is None else int(after)

    def record_node(self, run: int, shard: str, node: str) -> None:
        """Record the cluster node on which a shard has begun."""
        self._store.write(self._name(run, layout.PLACE, shard), node.encode())

    def read_node(self, run: int, shard: str) -> str | None:
        """Return the node of a shard; None if it has not begun, or runs without a cluster."""
        return self._read(self._name(run, layout.PLACE, shard))

    def request_split(self, run: int, shard: str) -> None:
        """Request that a shard leaves the inputs that it has not begun to other shards."""
        self._store.write(self._name(run, layout.SPLIT, shard), b"")

    def split_requested(self, run: int, shard: str) -> bool:
        """Return whether a split of a shard was requested."""
        return self._store.exists(self._name(run, layout.SPLIT, shard))

    def record_split(self, run: int, shard: str, row: int) -> None:
        """Record the first row of the plan that a split shard does not execute."""
        self._store.write(self._name(run, layout.SPLIT, f"{shard}-from"), str(row).encode())

    def read_split(self, run: int, shard: str) -> int | None:
        """Return what `record_split` recorded; None if the shard has not responded yet."""
        row = self._read(self._name(run, layout.SPLIT, f"{shard}-from"))
        return None if row is None else int(row)

    def record_attempts(self, run: int, shard: str, attempts: Mapping[int, object]) -> None:
        """Record the earlier attempts at inputs of a shard, by the row of the run's plan."""
        self._store.write(self._name(run, layout.ATTEMPTS, shard), json.dumps(attempts).encode())

    def read_attempts(self, run: int) -> dict[int, Any]:
        """Return the attempts that all shards of a run have recorded, the latest for each row."""
        folder = self._name(run, layout.ATTEMPTS)
        names = sorted(self._store.names(folder), key=lambda name: int(name.rpartition("-")[2]))
        # A lost node may have removed one since.
        files = [self._read(f"{folder}/{name}") or "{}" for name in names]
        return {int(row): seen for file in files for row, seen in json.loads(file).items()}

    def forget_attempts(self, run: int, shard: str) -> None:
        """Remove the attempts that a shard has recorded. Those of its earlier processes stay."""
        self._store.delete(self._name(run, layout.ATTEMPTS, shard))

    def begin_creation(self, run: int, start: int, stop: int, attempt: int) -> None:
        """Record that a shard begins to create its torch Dataset.

        Args:
            run: The number of the run.
            start: The first row of the shard.
            stop: The first row after the shard.
            attempt: The number of the attempt.
        """
        self._store.write(self._name(run, layout.CREATING, f"{start}-{stop}-{attempt}"), b"")

    def end_creation(self, run: int, start: int, stop: int, attempt: int) -> None:
        """Record that the creation that `begin_creation` recorded has ended."""
        self._store.delete(self._name(run, layout.CREATING, f"{start}-{stop}-{attempt}"))

    def creations(self, run: int) -> list[tuple[int, int]]:
        """Return the rows, from start to stop, of each creation that has begun and not ended."""
        ranges = [name.split("-") for name in self._store.names(self._name(run, layout.CREATING))]
        return [(int(start), int(stop)) for start, stop, _ in ranges]

    def record_usage(self, run: int, shard: str, usage: Usage) -> None:
        """Record the resources that the workers of a shard have used."""
        self._store.write(self._name(run, layout.USAGE, shard), json.dumps(usage).encode())

    def read_usage(self, run: int) -> Usage | None:
        """Return the resources that all workers of a run have used; None if not recorded."""
        folder = self._name(run, layout.USAGE)
        names = self._store.names(folder)
        usages = [json.loads(self._store.read(f"{folder}/{name}")) for name in names]
        if not usages:
            return None
        cpu_seconds, memory_bytes = zip(*usages, strict=True)
        return Usage(sum(cpu_seconds), max(memory_bytes))

    def _read(self, name: str) -> str | None:
        content = if_exists(self._store.read, name)
        return None if content is None else content.decode()

    def _name(self, run: int, *parts: str) -> str:
        return "/".join([layout.RUNS, f"{run:06d}", *parts])
