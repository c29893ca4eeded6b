"""One input as a step is given it, and where a step works."""

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
    """One input, as a step is given it: its name, its id, its local path, the manifest's row.

    One that has a `url` is fetched to `path` first; `planned` is what its store said of it when the
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
    """Where one attempt at a shard puts what its steps write: in `staging`, then in the store.

    `fetched` is the folder for inputs that are not on this machine; `reserved` are the keys that no
    row may have.
    """

    store: Store
    staging: Path
    fetched: Path | None = None
    reserved: Set[str] = RESERVED_KEYS
    host: str = field(default_factory=socket.gethostname)


@contextmanager
def open_staging(
    store: Store, attempt: str, *, fetches: bool = False, reserved: Set[str] = RESERVED_KEYS
) -> Iterator[StagingArea]:
    """Give a workbench for one attempt, whose name no other has; its folders go with the block."""
    with ExitStack() as stack:
        yield StagingArea(
            store=store,
            staging=stack.enter_context(store.staging(attempt)),
            fetched=stack.enter_context(scratch_folder()) if fetches else None,
            reserved=reserved,
        )


def stage(bench: StagingArea, item: Input) -> Path:
    """Make an input's own empty folder for what the step writes."""
    staged = bench.staging / item.input_id
    remove_folder(staged)
    staged.mkdir()
    return staged
