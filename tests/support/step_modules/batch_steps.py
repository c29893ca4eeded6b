"""Batch steps: workers load the samples, and a model processes batches of samples."""

import multiprocessing.util
import os
import subprocess
import time
import weakref
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from poison import UnprintableError


class Lengths:
    """A sample is the length of a text. A row has the length and the size of its batch."""

    def __init__(self, inputs, **params):
        self.inputs = inputs
        self.params = params

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        text = Path(self.inputs[index]).read_text()
        if text.startswith("raise"):
            raise ValueError(f"cannot be loaded: {text}")
        if text.startswith("kill"):
            os.kill(os.getpid(), 9)
        return torch.tensor([float(len(text)), float(text.startswith("bad"))])

    def process_batch(self, batch):
        if batch[:, 1].any():
            raise ValueError(f"a bad one among {len(batch)}")
        return {"length": batch[:, 0].int(), "batch": [len(batch)] * len(batch)}


class Shares(Lengths):
    """The model uses multiprocessing. The result is its temporary folder."""

    def process_batch(self, batch):
        return [multiprocessing.util.get_temp_dir()] * len(batch)


class NoRoom(Lengths):
    """The device has memory for `room` samples. A larger batch runs out of memory."""

    def __init__(self, inputs, room: int = 3):
        super().__init__(inputs)
        self.room = room

    def process_batch(self, batch):
        torch.empty(10**15 if len(batch) > self.room else 1)
        return batch[:, 0].tolist()


class FillsUp(Lengths):
    """Run out of memory in a batch of more than two. Report whether the memory was released."""

    held = staticmethod(lambda: None)

    def process_batch(self, batch):
        released = FillsUp.held() is None
        if len(batch) > 2:
            block = torch.ones(8)
            FillsUp.held = weakref.ref(block)
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return [{"released": released}] * len(batch)


class Files(Lengths):
    """Write a tensor for each sample."""

    def process_batch(self, batch, outs):
        for sample, out in zip(batch, outs, strict=True):
            torch.save(sample.clone(), out / "sample.pt")
        return [{"output": "sample.pt"}] * len(outs)


class Point(NamedTuple):
    place: tuple
    name: str


class Nested(Lengths):
    def __getitem__(self, index):
        size = len(Path(self.inputs[index]).read_text())
        return Point((size, torch.ones(size)[:1]), f"size {size}")

    def process_batch(self, batch):
        assert isinstance(batch, Point)
        sizes, ones = batch.place
        return Point(sizes + ones[:, 0].int(), batch.name)


class Padded(Lengths):
    """Has a collate function that pads encoded words to the longest word of the batch."""

    def __getitem__(self, index):
        return torch.tensor(list(Path(self.inputs[index]).read_bytes()))

    @staticmethod
    def collate_fn(samples):
        return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)

    def process_batch(self, batch):
        return [{"width": batch.shape[1], "letters": int((row > 0).sum())} for row in batch]


class Uneven(Padded):
    """Samples differ in length, so torch's default collate function fails."""

    collate_fn = None

    def process_batch(self, batch):
        return [{"width": batch.shape[1]}] * len(batch)


class OneForAll(Lengths):
    """Return one number for a whole batch, which belongs to no single input."""

    def process_batch(self, batch):
        return batch.sum()


class Hangs(Lengths):
    def process_batch(self, batch):
        if batch[:, 1].any():
            time.sleep(3600)
        return batch[:, 0].int()


class Dies(Lengths):
    def process_batch(self, batch):
        if batch[:, 1].any():
            os.kill(os.getpid(), 11)
        return batch[:, 0].int()


class PanicError(BaseException):
    """The errors of extensions in Rust are no Exception, either."""


class Table(Lengths):
    """The result is a table. Iterating over it gives the names of its columns."""

    def process_batch(self, batch):
        return pd.DataFrame({"length": batch[:, 0].numpy(), "bad": batch[:, 1].numpy()})


class Raises(Lengths):
    """Raise an error that is no Exception, or that has no text, in a method."""

    def __init__(self, inputs, method: str, error: str):
        super().__init__(inputs)
        self.method = method
        self.error = {
            "exit": SystemExit,
            "stop": KeyboardInterrupt,
            "text": UnprintableError,
            "panic": PanicError,
        }[error]

    def collate_fn(self, samples):
        batch = torch.stack(samples)
        if self.method == "collate_fn" and batch[:, 1].any():
            raise self.error
        return batch

    def process_batch(self, batch):
        if self.method == "process_batch" and batch[:, 1].any():
            raise self.error
        return batch[:, 0].int()


class TakesNothing(Lengths):
    def process_batch(self):
        return None


class CannotTravel(Lengths):
    """Make a batch that cannot be pickled if one sample is bad."""

    @staticmethod
    def collate_fn(samples):
        batch = torch.stack(samples)
        return [batch, (lambda: 0) if batch[:, 1].any() else None]

    def process_batch(self, batch):
        return batch[0][:, 0].int()


class AlwaysRaises(Lengths):
    """Fail like a model of another shape, and log each loaded sample."""

    def __init__(self, inputs, log: str):
        super().__init__(inputs)
        self.log = log

    def __getitem__(self, index):
        with open(self.log, "a") as file:
            file.write("loaded\n")
        return super().__getitem__(index)

    def process_batch(self, batch):
        raise RuntimeError("shapes cannot be multiplied")


class StartsAHelper(Lengths):
    """Start a process for the first batch, and use it for all later batches."""

    helper: subprocess.Popen | None = None

    def process_batch(self, batch):
        if StartsAHelper.helper is None:
            StartsAHelper.helper = subprocess.Popen(["sleep", "600"])
        if batch[:, 1].any() and len(batch) > 1:
            raise ValueError("comes again, in another pass")
        return [{"alive": StartsAHelper.helper.poll() is None}] * len(batch)


class BreaksTheDevice(Lengths):
    """Act like a GPU after an index error: every later batch in this process fails."""

    broken = False

    def process_batch(self, batch):
        if batch[:, 1].any() or BreaksTheDevice.broken:
            BreaksTheDevice.broken = True
            raise RuntimeError("CUDA error: device-side assert triggered")
        return batch[:, 0].int()
