"""Detects that a later run replaces files of a dataset that is open.

A run writes its plan before it replaces the first file. So if no later plan lists the input of a
file after the file was read, the file belongs to the table that was opened.
"""

import os
import time
from typing import Any

import numpy as np

from batchmill.errors import StoreError
from batchmill.layout import FILES, RUNS
from batchmill.ledger.ledger import Ledger
from batchmill.planning.plan_file import PlanFile
from batchmill.planning.run_spec import planned_ids
from batchmill.storage import is_url, open_store

# A request to an object store takes about as long as fetching a sample.
_REMOTE_SECONDS = 5.0


class Generation:
    """The files of a dataset that belong to the table of one run.

    Its pickle contains only the arguments.

    Args:
        dataset: The dataset's folder or URL.
        run: The run that published the table.
    """

    def __init__(self, dataset: str, run: int) -> None:
        self._dataset = dataset
        self._run = run
        self._ledger = Ledger(open_store(dataset))
        self._runs_folder = os.path.join(dataset, RUNS)
        # The sorted ids of the planned inputs, by run.
        self._planned: dict[int, Any] = {}
        self._state: object = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Generation, (self._dataset, self._run)

    def check(self, place: str) -> None:
        """Check that no later run has begun to replace a file. Call it after reading the file.

        In an object store, later runs are looked up every five seconds.

        Args:
            place: The file's path, relative to the dataset.

        Raises:
            StoreError: A later run executes the input of the file, or the plan of a later run was
                removed or cannot be read.
        """
        self._update()
        own = place.removeprefix(f"{FILES}/").partition("/")[0].encode()
        for run, ids in list(self._planned.items()):
            at = np.searchsorted(ids, own)
            if at < len(ids) and ids[at] == own:
                raise StoreError(
                    f"{self._dataset}/{place}",
                    f"run {run} executes its input again, so the file may differ from the table "
                    "that is open. When the run has ended, open the dataset again. If it was "
                    "stopped, run the job again first.",
                )

    def _update(self) -> None:
        """Read the plans of the runs that have begun since the last call."""
        state = self._changes()
        if state == self._state:
            return
        complete = True
        runs = self._ledger.runs()
        # The end of each run removes the folders of old runs.
        if any(run not in self._planned for run in range(self._run + 1, min(runs, default=0))):
            raise StoreError(
                self._dataset,
                "it has been open for a long time, and the plans of the next runs were removed. So "
                "the files may differ from the table that is open. Open the dataset again.",
            )
        for run in runs:
            if run <= self._run or run in self._planned:
                continue
            if self._ledger.store.exists(PlanFile(self._ledger, run).settings_name):
                self._planned[run] = np.sort(np.array(planned_ids(self._ledger, run), dtype="S"))
            else:
                complete = False  # The run writes its plan soon.
        if complete:
            self._state = state

    def _changes(self) -> object:
        """Return a value that changes when a run begins."""
        if is_url(self._dataset):
            return int(time.monotonic() / _REMOTE_SECONDS)
        try:
            return os.stat(self._runs_folder).st_mtime_ns
        except FileNotFoundError:
            return None
