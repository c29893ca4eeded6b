"""Check that the output of a job can be written, before anything starts."""

import tempfile
from pathlib import Path

from batchmill.core.layout import LEDGER_FOLDER
from batchmill.core.urls import is_url
from batchmill.errors import OptionError


def check_writable(output: str) -> None:
    """Raise OptionError if a folder cannot be written to. Leaves nothing behind.

    A bucket is not checked, because a trial costs a request and may leave an object.

    Args:
        output: The path or URL of the dataset, which may not exist yet.
    """
    if is_url(output):
        return
    place = Path(output, LEDGER_FOLDER)
    nearest = next(folder for folder in (place, *place.parents) if folder.exists())
    try:
        # The permissions are not enough to know it: the file system may be read-only.
        tempfile.TemporaryFile(dir=nearest).close()
    except OSError as error:
        raise OptionError(
            f"--output {output}: {nearest} cannot be written to ({error.strerror}). Change the "
            "permissions, or name another folder."
        ) from error
