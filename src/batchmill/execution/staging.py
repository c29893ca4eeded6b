"""One input as its step receives it, and the folders in which a step works."""

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


class Input(NamedTuple):
    """One input as its step receives it: its name, its id, its local path, the manifest's row.

    An input with a `url` is first fetched to `path`. `planned` is its state in its store when the
    run was planned.
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

    Steps write to folders in `folder`; then the files move to `store`. Remote inputs are fetched to
    `fetched`. No row may have one of the `reserved` keys.
    """

    store: Store
    folder: Path
    fetched: Path | None = None
    reserved: Set[str] = RESERVED_KEYS
    host: str = field(default_factory=socket.gethostname)


@contextmanager
def open_staging(
    store: Store, attempt: str, *, fetches: bool = False, reserved: Set[str] = RESERVED_KEYS
) -> Iterator[StagingArea]:
    """Create the folders of one attempt. They are removed after the block.

    Args:
        store: The dataset's store.
        attempt: A name that no other attempt has.
        fetches: Whether there are remote inputs.
        reserved: The keys that no row may have.
    """
    with ExitStack() as stack:
        yield StagingArea(
            store=store,
            folder=stack.enter_context(store.staging(attempt)),
            fetched=stack.enter_context(scratch_folder()) if fetches else None,
            reserved=reserved,
        )


def stage(staging: StagingArea, item: Input) -> Path:
    """Create an input's own empty folder, for the files that the step writes."""
    staged = staging.folder / item.input_id
    remove_folder(staged)
    staged.mkdir()
    return staged
