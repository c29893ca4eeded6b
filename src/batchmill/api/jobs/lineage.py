"""The chain of datasets that a dataset is made of."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from batchmill.core.ledger.open import last_run, open_ledger
from batchmill.core.planning.run_spec import RunSpec, read_spec, spec_of
from batchmill.core.sizes import counted, duration
from batchmill.core.urls import absolute
from batchmill.errors import BatchmillError


class Link(NamedTuple):
    """A dataset of a chain.

    Attributes:
        dataset: Its path or URL.
        manifest: Its manifest: a file, a folder, or the dataset before it in the chain.
        step: The reference of its step.
        version: The number of its last version. 0 without one.
        created: When this was published, in seconds since 1970.
        rows: The number of rows.
        failures: The number of inputs that are not ok.
        out_of_date: Why an update would execute inputs. Empty if no reason is recorded.
    """

    dataset: str
    manifest: str
    step: str
    version: int
    created: float
    rows: int
    failures: int
    out_of_date: str

    @property
    def text(self) -> str:
        """The dataset in one line."""
        why = f"; out of date: {self.out_of_date}" if self.out_of_date else ""
        if not self.version:
            return f"{self.dataset}: no version yet{why}"
        age = duration(max(time.time() - self.created, 0))
        parts = [f"version {self.version}", f"{age} old", counted(self.rows, "row")]
        if self.failures:
            parts.append(counted(self.failures, "failed input"))
        return f"{self.dataset}: {', '.join(parts)}, {self.step}{why}"


def lineage(dataset: str) -> list[Link]:
    """Return the datasets that a dataset is made of, the first one first, and the dataset itself.

    Only the ledgers are read. `batchmill update --deep --plan` also compares files and code. The
    chain begins after a dataset that cannot be read: `out_of_date` of the first link has the error.

    Raises:
        OptionError: There is no such dataset.
        StoreError: Its ledger cannot be read.
    """
    links: list[Link] = []
    place = absolute(dataset)
    while place and place not in [link.dataset for link in links]:
        try:
            link, place = _link(place)
        except BatchmillError as error:
            if not links:
                raise
            links[0] = links[0]._replace(out_of_date=str(error))
            break
        links.insert(0, link)
    return links


def mermaid(links: Sequence[Link]) -> str:
    """Return a chain as a diagram for Mermaid, which GitHub and notebooks draw."""
    names = [links[0].manifest, *(link.text.replace(": ", "<br>", 1) for link in links)]
    nodes = [
        f'  n{number}["{name.replace(chr(34), "#quot;")}"]' for number, name in enumerate(names)
    ]
    arrows = [f"  n{number} --> n{number + 1}" for number in range(len(links))]
    return "\n".join(["graph TD", *nodes, *arrows])


def _link(place: str) -> tuple[Link, str]:
    """Return a dataset of a chain, and the dataset before it. Empty without one."""
    ledger = open_ledger(place)
    version = ledger.snapshots.last_version()
    spec = spec_of(version.settings) if version else read_spec(ledger, last_run(ledger, place))
    link = Link(
        dataset=place,
        manifest=spec.manifest,
        step=spec.step,
        version=version.number if version else 0,
        created=version.created if version else 0.0,
        rows=version.rows if version else 0,
        failures=version.failed if version else 0,
        out_of_date=_why_out_of_date(spec),
    )
    return link, spec.source_dataset


def _why_out_of_date(spec: RunSpec) -> str:
    if not spec.source_dataset or spec.names_version:
        return ""
    try:
        last = open_ledger(spec.source_dataset).snapshots.last_version()
    except BatchmillError as error:
        return str(error)
    if last is None or last.number == spec.source_version:
        return ""
    return f"made of version {spec.source_version}, and {spec.source_dataset} has {last.number}"
