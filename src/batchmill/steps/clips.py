"""Cut a recording into clips, and select them by their labels."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from batchmill.steps.annotations import Labels
from batchmill.steps.recordings import Recording, windows


class Clip(NamedTuple):
    """A part of a recording.

    Attributes:
        number: Its number in the recording, from 0.
        samples: The samples, [frames, channels].
        start: Its start in the recording, in seconds.
        end: Its end in the recording, in seconds.
        labels: The sorted labels of its annotations. None without annotations.
    """

    number: int
    samples: np.ndarray
    start: float
    end: float
    labels: list[str] | None

    def row(self, output: str, source: Path, **columns: Any) -> dict[str, Any]:
        """Return the clip's metadata row.

        Args:
            output: The name of the clip's file.
            source: The recording.
            **columns: Further columns, placed before those of the labels.

        Returns:
            The columns of the row.
        """
        row = {
            "output": output,
            "source": source.name,
            "clip": self.number,
            "start": self.start,
            "end": self.end,
            **columns,
        }
        if self.labels is not None:
            row["labels"] = self.labels
            # Without this column, the table would show the manifest's column `label` instead.
            row["label"] = self.labels[0] if len(self.labels) == 1 else None
        return row


@dataclass(frozen=True, kw_only=True)
class ClipFilter:
    """The rules that select the clips of a recording.

    Attributes:
        labels: The recording's annotations. None without annotations.
        include_last: True to keep a shorter clip at the end.
        min_overlap_seconds: A clip gets a label if more than this overlaps with it.
        only_labelled: True to leave out clips without a label.
    """

    labels: Labels | None
    include_last: bool
    min_overlap_seconds: float
    only_labelled: bool

    def select(self, recording: Recording, length: int, hop: int, dtype: str) -> Iterator[Clip]:
        """Yield the selected clips. Always reads the recording to its end.

        Args:
            recording: The open recording.
            length: Frames per clip.
            hop: Frames from the start of a clip to the start of the next.
            dtype: The NumPy type of the samples.

        Yields:
            The clips in order.

        Raises:
            ValueError: The recording is truncated or damaged.
        """
        rate = recording.samplerate
        for number, (first, samples) in enumerate(windows(recording, length, hop, dtype)):
            start, end = first / rate, (first + len(samples)) / rate
            labels = None
            if self.labels is not None:
                labels = self.labels.within(start, end, self.min_overlap_seconds)
            is_short = len(samples) < length
            # `continue`, not `break`: only reading to the end shows whether the file is complete.
            if (is_short and not self.include_last) or (self.only_labelled and not labels):
                continue
            yield Clip(number, samples, start, end, labels)
