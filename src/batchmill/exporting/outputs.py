"""Read the files of samples: loose files, files in packs, and inputs."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from batchmill.errors import StoreError
from batchmill.security.allowlist import check_input
from batchmill.storage import is_url, open_store, remote
from batchmill.storage.addresses import parse_address
from batchmill.storage.fingerprints import hash_bytes
from batchmill.storage.store import ahead_in_threads
from batchmill.urls import join

_REQUESTS = 16


class OutputFile(NamedTuple):
    """The file of a sample.

    Attributes:
        place: Its path or URL, relative to the root.
        content: The recorded hash of its content. Empty if there is no record.
    """

    place: str
    content: str


def read_outputs(files: Sequence[OutputFile], root: str, *, are_inputs: bool) -> Iterator[bytes]:
    """Return the content of each file, in order. See `read_output`."""
    read = partial(read_output, root=root, is_input=are_inputs)
    return ahead_in_threads(read, files, _REQUESTS) if is_url(root) else map(read, files)


def read_output(file: OutputFile, root: str, *, is_input: bool) -> bytes:
    """Read a file, and compare it with its recorded hash.

    Args:
        file: The file.
        root: The folder or URL that its place is relative to.
        is_input: True for an input, which the allowlist may reject.

    Returns:
        Its content.

    Raises:
        StoreError: The file is missing, or differs from its record.
        OptionError: The input may not be read here.
    """
    place = join(root, file.place)
    if is_input:
        check_input(place)
    if parse_address(file.place):
        data = open_store(root).read(file.place)
    elif is_url(place):
        data = remote.read(place)
    else:
        try:
            with open(place, "rb", buffering=0) as opened:
                data = opened.read()
        except OSError as error:
            raise StoreError(place, f"{error.strerror}. {_remedy(is_input)}") from error
    if file.content and hash_bytes(data) != file.content:
        raise StoreError(place, f"differs from what the run recorded. {_remedy(is_input)}")
    return data


def _remedy(is_input: bool) -> str:
    if is_input:
        return "The samples are the inputs, so run the job again, then export."
    return "Repair the dataset: batchmill verify --hash --repair. Then run the job again."
