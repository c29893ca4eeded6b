"""Read a dataset back: its files and labels as samples for training with torch."""

from batchmill.reading.dataset import SampleDataset, open_dataset
from batchmill.reading.padding import Padded, pad_collate

__all__ = ["Padded", "SampleDataset", "open_dataset", "pad_collate"]
