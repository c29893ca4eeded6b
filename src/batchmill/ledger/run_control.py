"""Requests and answers between a run and its shards, as files in the ledger.

The shards may run on other machines. Every machine can read the files, and the files remain after a
process is killed. Every method raises StoreError if the dataset cannot be read or written.
"""

from batchmill.storage import Store


class RunControl:
    """The requests and answers of a dataset's runs.

    Args:
        store: The store of the dataset.
        folder: The name of the folder of the runs.
    """

    def __init__(self, store: Store, folder: str) -> None:
        self._store = store
        self._folder = folder

    def request_stop(self, run: int) -> None:
        """Request that all shards of a run commit their finished outcomes and end."""
        self._store.write(self._stop_name(run), b"")

    def stop_requested(self, run: int) -> bool:
        """Return whether a stop of a run was requested."""
        return self._store.exists(self._stop_name(run))

    def record_flow_run(self, run: int, identifier: str) -> None:
        """Record the id of the flow run that executes a run."""
        self._store.write(self._flow_run_name(run), identifier.encode())

    def read_flow_run(self, run: int) -> str | None:
        """Return the id of the flow run that executes a run; None if it was not recorded."""
        return self._read(self._flow_run_name(run))

    def record_node(self, run: int, shard: str, node: str) -> None:
        """Record the cluster node on which a shard has begun.

        Args:
            run: The number of the run.
            shard: The key of the shard.
            node: The id of the node.
        """
        self._store.write(self._node_name(run, shard), node.encode())

    def read_node(self, run: int, shard: str) -> str | None:
        """Return the cluster node on which a shard has begun.

        Args:
            run: The number of the run.
            shard: The key of the shard.

        Returns:
            The id of the node; None if the shard has not begun, or runs without a cluster.
        """
        return self._read(self._node_name(run, shard))

    def request_split(self, run: int, shard: str) -> None:
        """Request that a shard leaves the inputs that it has not begun to other shards."""
        self._store.write(self._split_name(run, shard), b"")

    def split_requested(self, run: int, shard: str) -> bool:
        """Return whether a split of a shard was requested."""
        return self._store.exists(self._split_name(run, shard))

    def record_split(self, run: int, shard: str, row: int) -> None:
        """Record where a shard was split.

        Args:
            run: The number of the run.
            shard: The key of the shard.
            row: The first row of the plan that the shard does not execute.
        """
        self._store.write(self._boundary_name(run, shard), str(row).encode())

    def read_split(self, run: int, shard: str) -> int | None:
        """Return where a shard was split.

        Args:
            run: The number of the run.
            shard: The key of the shard.

        Returns:
            The first row of the plan that the shard does not execute; None if it has not answered.
        """
        row = self._read(self._boundary_name(run, shard))
        return None if row is None else int(row)

    def record_lone_attempt(self, run: int, row: int, attempt: int) -> None:
        """Record that a row of a run's plan is about to be executed alone in a shard.

        Args:
            run: The number of the run.
            row: The row of the plan.
            attempt: The attempt of the shard.
        """
        self._store.write(f"{self._lone_folder(run)}/{row}-{attempt}", b"")

    def count_lone_attempts(self, run: int, row: int) -> int:
        """Count how often a row of a run's plan was executed alone in a shard."""
        names = self._store.names(self._lone_folder(run))
        return sum(name.startswith(f"{row}-") for name in names)

    def _read(self, name: str) -> str | None:
        return self._store.read(name).decode() if self._store.exists(name) else None

    def _run_folder(self, run: int) -> str:
        return f"{self._folder}/{run:06d}"

    def _stop_name(self, run: int) -> str:
        return f"{self._run_folder(run)}/stop"

    def _flow_run_name(self, run: int) -> str:
        return f"{self._run_folder(run)}/flow-run"

    def _node_name(self, run: int, shard: str) -> str:
        return f"{self._run_folder(run)}/place/{shard}"

    def _split_name(self, run: int, shard: str) -> str:
        return f"{self._run_folder(run)}/split/{shard}"

    def _boundary_name(self, run: int, shard: str) -> str:
        return f"{self._split_name(run, shard)}-from"

    def _lone_folder(self, run: int) -> str:
        return f"{self._run_folder(run)}/alone"
