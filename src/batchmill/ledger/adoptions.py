"""The records of adoptions: results of earlier code that a run has kept for changed code."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from batchmill.ledger.json_file import read_sealed, sealed
from batchmill.ledger.proofs import CONFIDENCE, most_different
from batchmill.sizes import counted
from batchmill.storage import Store


@dataclass(frozen=True, kw_only=True)
class Adoption:
    """The results that one run has adopted.

    Attributes:
        run: The number of the run.
        outcomes: The number of outcomes that it adopted.
        sample: The number of inputs whose results were compared. 0: the user gave their word.
        seed: The seed of the random sample.
    """

    run: int
    outcomes: int
    sample: int = 0
    seed: int = 0

    @property
    def text(self) -> str:
        """How many outcomes of earlier code were kept, and why that is justified."""
        what = f"{counted(self.outcomes, 'outcome')} of earlier code kept"
        if not self.sample:
            return f"{what}, on the user's word."
        return f"{what}: {equal_text(self.outcomes, self.sample, self.seed)}."


class Adoptions:
    """The adoptions of a dataset.

    Args:
        store: The store of the dataset.
        folder: The name of the folder of the records.
    """

    def __init__(self, store: Store, folder: str) -> None:
        self._store = store
        self._folder = folder

    def record(self, adoption: Adoption) -> None:
        """Record an adoption. Raises StoreError if the dataset cannot be written."""
        name = f"{self._folder}/{adoption.run:06d}.json"
        self._store.write(name, sealed(asdict(adoption)))

    def read_all(self) -> Iterator[Adoption]:
        """Yield all adoptions in the order of their runs.

        Raises:
            LedgerError: A record is damaged.
            StoreError: The dataset cannot be read.
        """
        for name in sorted(self._store.names(self._folder)):
            yield Adoption(**read_sealed(self._store, f"{self._folder}/{name}"))


def equal_text(inputs: int, sample: int, seed: int) -> str:
    """Return what a random sample without differences says about all inputs.

    >>> equal_text(20_000, 300, 7)
    '0 of 300 differ (seed 7): under 1 % of all 20,000 at 95 % confidence'
    >>> equal_text(20, 20, 7)
    'all 20 are equal'
    """
    if sample >= inputs:
        return f"all {inputs:,} are equal"
    return (
        f"0 of {sample:,} differ (seed {seed}): under {most_different(sample):g} % of all "
        f"{inputs:,} at {100 * CONFIDENCE:g} % confidence"
    )
