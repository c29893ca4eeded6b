"""List failures, retry failed inputs, verify a dataset, and list and compare its versions."""

import os
from collections.abc import Iterable, Sequence
from operator import index
from typing import Literal, overload

import pandas as pd

from batchmill.api.jobs.failed_inputs import failure_table, release_inputs
from batchmill.api.jobs.lineage import Link, lineage
from batchmill.api.keywords import python_call
from batchmill.core.layout import INPUT_COLUMN
from batchmill.core.ledger.open import open_ledger
from batchmill.core.ledger.proof_records import Proof
from batchmill.core.ledger.state import LIBRARIES, made_with
from batchmill.core.options.conditions import exact_frame
from batchmill.core.storage.large_tables import take
from batchmill.core.storage.name_search import rows_of
from batchmill.core.urls import absolute
from batchmill.datasets.maintenance.verify import Difference, examine
from batchmill.datasets.maintenance.versions import (
    ListedVersion,
    VersionDiff,
    compare_versions,
    drop_name,
    keep_version,
    list_versions,
)
from batchmill.datasets.reading.published import read_published
from batchmill.errors import OptionError


@python_call
def failures(
    dataset: str | os.PathLike[str],
    *inputs: str,
    kind: Sequence[str] = (),
    group: int | Sequence[int] = (),
) -> pd.DataFrame:
    """Return the inputs of a dataset that are not ok, one row each.

    Args:
        dataset: The dataset's folder or URL.
        *inputs: Only these inputs.
        kind: Only these outcomes, for example ["crashed", "oom"].
        group: Only these groups of failures with the same cause.

    Returns:
        The columns input, outcome, group, error, message, traceback, log, attempts and more.

    Raises:
        OptionError: There is no such dataset, input, outcome or group.
    """
    place = os.fspath(dataset)
    chosen = (_inputs(inputs), _names(kind), _numbers(group))
    frame: pd.DataFrame = failure_table(open_ledger(place), place, *chosen).to_pandas()
    return frame.astype({"result_run": "Int32"})  # Usually it is missing.


@python_call
def retry(
    dataset: str | os.PathLike[str],
    *inputs: str,
    kind: Sequence[str] = (),
    group: int | Sequence[int] = (),
    where: str = "",
) -> list[str]:
    """Let the next run execute failed inputs again, or inputs with certain rows.

    Args:
        dataset: The dataset's folder or URL.
        *inputs: Only these inputs. Default: all failed inputs.
        kind: Only these outcomes, for example ["crashed", "oom"].
        group: Only these groups of failures with the same cause.
        where: The inputs of the rows that meet this condition, instead of failed inputs.

    Returns:
        The names of the inputs that the next run executes again.

    Raises:
        OptionError: There is no such dataset, input, outcome or group.
        LedgerError: A run is using the dataset.
    """
    chosen = (_inputs(inputs), _names(kind), _numbers(group))
    return release_inputs(os.fspath(dataset), *chosen, where)


@overload
def verify(
    dataset: str | os.PathLike[str],
    *,
    hash: bool = ...,
    repair: bool = ...,
    version: int | str | None = ...,
) -> pd.DataFrame: ...


@overload
def verify(
    dataset: str | os.PathLike[str],
    *,
    execute: int | Literal["all"],
    version: int | str | None = ...,
    seed: int | None = ...,
    root: str | os.PathLike[str] = ...,
    trust_step: bool = ...,
) -> Proof: ...


@python_call
def verify(
    dataset: str | os.PathLike[str],
    *,
    hash: bool = False,
    repair: bool = False,
    version: int | str | None = None,
    execute: int | Literal["all"] = 0,
    seed: int | None = None,
    root: str | os.PathLike[str] = "",
    trust_step: bool = False,
) -> pd.DataFrame | Proof:
    """Compare a dataset's files with its ledger, or its results with results that are made again.

    Args:
        dataset: The dataset's folder or URL.
        hash: Read all outputs and compare their contents, not only their sizes.
        repair: Release the inputs of missing or changed files, and remove unreferenced files.
        version: Compare only the files of this version: its number or name.
        execute: Make this number of results again, a random sample, or "all", and compare them.
            The step is imported in this process. The result is recorded in the dataset if possible.
        seed: The seed of the sample. Default: a new one.
        root: The folder or URL of the inputs. Default: the recorded one.
        trust_step: With `execute`: also run a step of a notebook, which is code in the dataset.

    Returns:
        One row per difference: kind, path, input, message. The table is empty if the dataset
        matches its ledger. With `execute`, a `Proof` with `is_equal`, `lines()` and all counts.

    Raises:
        OptionError: There is no such dataset or version, or its results cannot be made again.
        StepError: With `execute`: the step cannot be loaded here.
        LedgerError: A run is using the dataset.
    """
    if execute and (hash or repair):
        raise OptionError("--execute cannot be combined with --hash or --repair. Drop one.")
    if not execute and (seed is not None or root or trust_step):
        raise OptionError("--seed, --root and --trust-step need --execute.")
    if execute:
        # These modules import torch, which the other comparison does not need.
        from batchmill.runs.proof import ProofOptions, parse_count, prove, record_proof

        count = parse_count(str(execute))
        options = ProofOptions(
            count=count, version=version, seed=seed, root=os.fspath(root), trust_step=trust_step
        )
        proof = next(prove(os.fspath(dataset), options))
        record_proof(proof)
        return proof
    ledger = open_ledger(os.fspath(dataset))
    differences = examine(ledger, hash_files=hash, repair=repair, version=version)
    return pd.DataFrame(differences, columns=Difference._fields)


@python_call
def versions(dataset: str | os.PathLike[str]) -> pd.DataFrame:
    """Return the versions of a dataset that can be opened, in order.

    Args:
        dataset: The dataset's folder or URL.

    Returns:
        One row per version: version, created, rows, failures, step, params, own_bytes, names, table
        and proof. `own_bytes` is the size of the files that no other version has. `table` is the
        hash of the version's table. `proof` is the result of its last proof.

    Raises:
        OptionError: There is no such dataset.
    """
    listed = list_versions(open_ledger(os.fspath(dataset)))
    frame = pd.DataFrame(listed, columns=ListedVersion._fields)
    frame["created"] = pd.to_datetime(frame["created"], unit="s", utc=True)
    return frame


@python_call
def keep(
    dataset: str | os.PathLike[str],
    version: int | str | None = None,
    *,
    name: str = "",
    drop: str = "",
) -> None:
    """Give a version of a dataset a name, so that no run removes it, or remove a name.

    Args:
        dataset: The dataset's folder or URL.
        version: The number or name of the version to name.
        name: The new name: letters, digits and ._-, beginning with a letter.
        drop: A name to remove instead. The next runs may remove its version.

    Raises:
        OptionError: There is no such dataset, version or name, or the name is in use.
        LedgerError: A run is using the dataset.
    """
    if bool(drop) == bool(name) or (version is not None) != bool(name):
        raise OptionError("keep: give a version and name=, or only drop= with a name.")
    ledger = open_ledger(os.fspath(dataset))
    if version is None:
        drop_name(ledger, drop)
    else:
        keep_version(ledger, version, name)


@python_call
def diff(dataset: str | os.PathLike[str], before: int | str, after: int | str) -> VersionDiff:
    """Compare two versions of a dataset.

    Args:
        dataset: The dataset's folder or URL.
        before: The number or name of a version.
        after: The number or name of another version.

    Returns:
        The inputs that were added, removed and changed.

    Raises:
        OptionError: There is no such dataset or version.
    """
    return compare_versions(open_ledger(os.fspath(dataset)), before, after)


@python_call
def graph(dataset: str | os.PathLike[str]) -> list[Link]:
    """Return the datasets that a dataset is made of, the first one first, and the dataset itself.

    Each has its version, age and counts, and `out_of_date`: whether it was made of an earlier
    version of the one before. Only the datasets are read, not the files and the code. If one before
    cannot be read, the list begins after it.

    Raises:
        OptionError: There is no such dataset.
        StoreError: The dataset cannot be read.
    """
    return lineage(os.fspath(dataset))


@python_call
def metadata(
    dataset: str | os.PathLike[str], *, version: int | str | None = None, libraries: bool = False
) -> pd.DataFrame:
    """Return the metadata table of a dataset, one row per result.

    Args:
        dataset: The dataset's folder or URL.
        version: The number or name of a version. None: the last one.
        libraries: Add a column `libraries`: the versions of the libraries that made each result,
            as a JSON object.

    Returns:
        The table. A column with missing values and whole numbers that a float would round has the
        dtype object.

    Raises:
        OptionError: There is no such dataset or version, or no table yet, or the table has a
            column `libraries` of its own.
        LedgerError: The table is damaged.
    """
    place = absolute(os.fspath(dataset))
    published = read_published(place, version=version)
    frame = exact_frame(published.table)
    if libraries:
        if LIBRARIES in frame:
            raise OptionError(f"{place}: its table has a column {LIBRARIES} of its own.")
        state = open_ledger(place).files.read_state(published.version)
        rows = rows_of(published.table[INPUT_COLUMN], state.names)
        numbers = made_with(take(state.table, rows)).to_pylist()
        frame[LIBRARIES] = [state.libraries[number] for number in numbers]
    return frame


def _names(kind: str | Sequence[str]) -> tuple[str, ...]:
    return (kind,) if isinstance(kind, str) else tuple(kind)


def _inputs(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not isinstance(name, str):
            kind = type(name).__name__
            raise OptionError(f"an input is a {kind}, not a name. A list of names needs a star.")
    return names


def _numbers(group: int | Sequence[int]) -> tuple[int, ...]:
    # An item of a pandas column is a number of numpy.
    try:
        return tuple(map(index, group)) if isinstance(group, Iterable) else (index(group),)
    except TypeError as error:
        raise OptionError(f"group {group!r}: expected numbers of groups.") from error
