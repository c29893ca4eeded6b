"""One input as passed to its step, and the folders for the files of one attempt."""

import socket
from collections.abc import Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from batchmill.execution.rows import RESERVED_KEYS
from batchmill.storage import Store, remote
from batchmill.storage.local import remove_folder
from batchmill.storage.scratch import scratch_folder

# The folders of the workers of a confined step, below the folder of the attempt.
CONFINED_FOLDERS = "worker-*"


class Input(NamedTuple):
    """One input as passed to its step: name, id, local path and manifest row.

    An input with a `url` is first fetched to `path`. `planned` has its size, time and ETag at the
    time of planning.
    """

    name: str
    input_id: str
    path: str
    row: Mapping[str, Any]
    url: str = ""
    planned: remote.FileStat | None = None


@dataclass(frozen=True, kw_only=True)
class StagingArea:
    """The folders of one attempt at a shard.

    Steps write to folders in `folder`. Then the engine moves the files to `store`. Remote inputs
    are fetched to `fetched`. Confined steps have temporary files in `temporary`. No row may have
    one of the `reserved` keys.
    """

    store: Store
    folder: Path
    fetched: Path | None = None
    temporary: Path | None = None
    reserved: Set[str] = RESERVED_KEYS
    host: str = field(default_factory=socket.gethostname)


@contextmanager
def open_staging(
    store: Store,
    attempt: str,
    *,
    fetches: bool = False,
    confines: bool = False,
    reserved: Set[str] = RESERVED_KEYS,
) -> Iterator[StagingArea]:
    """Create the folders of one attempt, and remove them after the block.

    Args:
        store: The dataset's store.
        attempt: A unique name of the attempt.
        fetches: True if there are remote inputs.
        confines: True if the step is confined.
        reserved: The keys that no row may have.
    """
    with ExitStack() as stack:
        yield StagingArea(
            store=store,
            folder=stack.enter_context(store.staging(attempt)),
            fetched=stack.enter_context(scratch_folder()) if fetches else None,
            temporary=stack.enter_context(scratch_folder()) if confines else None,
            reserved=reserved,
        )


def stage(staging: StagingArea, item: Input) -> Path:
    """Create an empty folder for the files that the step writes for an input."""
    staged = staging.folder / item.input_id
    remove_folder(staged)
    staged.mkdir()
    return staged
