"""One input as passed to its step, and the folders for the files of one attempt."""

import errno
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from batchmill.core.storage import Store, is_url, remote
from batchmill.core.storage.local import remove_folder
from batchmill.core.storage.pack_writer import PackWriter
from batchmill.core.storage.scratch import scratch_folder
from batchmill.runs.inputs.result_rows import RESERVED_KEYS

# The folders of the workers of a confined step, below the folder of the attempt.
CONFINED_FOLDERS = "worker-*"


class Companion(NamedTuple):
    """A further file of an input: its name and local path, and `url` and `planned` as in Input."""

    name: str
    path: str
    url: str = ""
    planned: remote.FileStat | None = None


class Input(NamedTuple):
    """One input as passed to its step: name, id, local path and manifest row.

    An input with a `url`, which may end with an address in a pack, is first fetched to `path`.
    `planned` has its size, time and ETag at the time of planning. `companions` has its further
    files by column, None for an empty cell. `planned_companions` is the digest of their states and,
    if `is_folder`, of the states of the folder's files. If it is read `in_parts`, only the first
    bytes of its file are fetched to `path`.
    """

    name: str
    input_id: str
    path: str
    row: Mapping[str, Any]
    url: str = ""
    planned: remote.FileStat | None = None
    companions: Mapping[str, Companion | None] = MappingProxyType({})
    planned_companions: str | None = None
    is_folder: bool = False
    in_parts: bool = False

    @property
    def files(self) -> "list[Input | Companion]":
        """The companions and the input itself."""
        return [*filter(None, self.companions.values()), self]

    @property
    def fetched(self) -> "list[Input | Companion]":
        """The files that are fetched from a store, so not those in packs on this machine."""
        return [file for file in self.files if is_url(file.url)]


@dataclass(frozen=True, kw_only=True)
class StagingArea:
    """The folders of one attempt at a shard.

    Steps write to folders in `folder`. Then the engine moves the files to `store`. Remote inputs
    are fetched to `fetched`. Confined steps have temporary files in `temporary`. With `packs`,
    outputs are appended to packs, and `spares` are empty folders. No row may have one of the
    `reserved` keys.
    """

    store: Store
    folder: Path
    fetched: Path | None = None
    temporary: Path | None = None
    packs: PackWriter | None = None
    spares: list[Path] = field(default_factory=list)
    reserved: Set[str] = RESERVED_KEYS
    host: str = field(default_factory=socket.gethostname)


@contextmanager
def open_staging(
    store: Store,
    attempt: str,
    *,
    fetches: bool = False,
    confines: bool = False,
    make_packs: Callable[[Path, Path], PackWriter] | None = None,
    reserved: Set[str] = RESERVED_KEYS,
) -> Iterator[StagingArea]:
    """Create the folders of one attempt, and remove them after the block.

    Args:
        store: The dataset's store.
        attempt: A unique name of the attempt.
        fetches: True if there are remote inputs.
        confines: True if the step is confined.
        make_packs: Returns the writer of packs, given the folder of the packs and a folder that
            only this attempt uses. None: each output is a file.
        reserved: The keys that no row may have.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(store.staging(attempt))
        yield StagingArea(
            store=store,
            folder=folder,
            packs=make_packs(store.pack_folder(folder), folder) if make_packs else None,
            fetched=stack.enter_context(scratch_folder()) if fetches else None,
            temporary=stack.enter_context(scratch_folder()) if confines else None,
            reserved=reserved,
        )


def stage(staging: StagingArea, item: Input) -> Path:
    """Create an empty folder for the files that the step writes for an input."""
    staged = staging.folder / item.input_id
    try:
        _make_or_rename(staging.spares, staged)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        remove_folder(staged)  # An earlier attempt was killed.
        os.mkdir(staged)
    return staged


def empty(staging: StagingArea, staged: Path, names: Sequence[str]) -> None:
    """Remove an input's files, which are in a pack now. The next input may get the empty folder."""
    if any("/" in name for name in names):
        remove_folder(staged)
        return
    for name in names:
        os.unlink(f"{staged}/{name}")
    # To remove a folder takes longer than everything else that is done for a small file.
    staging.spares.append(staged)


def _make_or_rename(spares: list[Path], staged: Path) -> None:
    """Create a folder, or give an empty one its name. Raises OSError, also if it has files."""
    while spares:
        # The list was inherited, and another worker may have used the folder.
        with suppress(FileNotFoundError):
            os.rename(spares.pop(), staged)
            return
    os.mkdir(staged)


def discard(item: Input) -> None:
    """Remove the local copies of an input's remote files."""
    for file in item.files:
        if file.url:
            # The path has the folders of the URL, below a folder with the id of the input.
            above, own, below = file.path.partition(f"/{item.input_id}")
            remove_flat(above + own + below.partition("/")[0], [file.path])


def remove_flat(folder: str, paths: Iterable[str]) -> None:
    """Remove a folder with these files. It takes a fifth of the calls of `remove_folder`."""
    try:
        for path in paths:
            os.unlink(path)
        os.rmdir(folder)
    except OSError:  # There are other files in it, or folders.
        remove_folder(folder)
