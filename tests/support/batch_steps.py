"""Batch steps, as users write them: workers load the samples, a model works on batches of them."""

import multiprocessing.util
import os
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import torch


class Lengths:
    """A sample is the length of a text; what comes of a batch is the square of each."""

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
    """The model uses multiprocessing itself: its folder for that is the result."""

    def process_batch(self, batch):
        return [multiprocessing.util.get_temp_dir()] * len(batch)


class NoRoom(Lengths):
    """On a device with room for so many samples at a time: what it asks for beyond is not there."""

    def __init__(self, inputs, room: int = 3):
        super().__init__(inputs)
        self.room = room

    def process_batch(self, batch):
        torch.empty(10**15 if len(batch) > self.room else 1)
        return batch[:, 0].tolist()


class Files(Lengths):
    """Writes a tensor for each sample."""

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
    """Its own collate function pads encoded words to the longest of the batch."""

    def __getitem__(self, index):
        return torch.tensor(list(Path(self.inputs[index]).read_bytes()))

    @staticmethod
    def collate_fn(samples):
        return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)

    def process_batch(self, batch):
        return [{"width": batch.shape[1], "letters": int((row > 0).sum())} for row in batch]


class Uneven(Padded):
    """Samples of different lengths, which torch's own collate function does not take."""

    collate_fn = None

    def process_batch(self, batch):
        return [{"width": batch.shape[1]}] * len(batch)


class OneForAll(Lengths):
    """Gives one number for a whole batch: nobody knows whose it is."""

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


class TakesNothing(Lengths):
    def process_batch(self):
        return None


class CannotTravel(Lengths):
    """Its own collate function makes a batch that no queue takes, where one sample is odd."""

    @staticmethod
    def collate_fn(samples):
        batch = torch.stack(samples)
        return [batch, (lambda: 0) if batch[:, 1].any() else None]

    def process_batch(self, batch):
        return batch[0][:, 0].int()


class AlwaysRaises(Lengths):
    """As a model of another shape; notes what it has loaded."""

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
    """Starts a process for its first batch, and wants it for the others, too."""

    helper = None

    def process_batch(self, batch):
        if StartsAHelper.helper is None:
            StartsAHelper.helper = subprocess.Popen(["sleep", "600"])
        if batch[:, 1].any() and len(batch) > 1:
            raise ValueError("comes again, in another pass")
        return [{"alive": StartsAHelper.helper.poll() is None}] * len(batch)


class BreaksTheDevice(Lengths):
    """As a GPU on which an index was out of range: nothing succeeds any more in this process."""

    broken = False

    def process_batch(self, batch):
        if batch[:, 1].any() or BreaksTheDevice.broken:
            BreaksTheDevice.broken = True
            raise RuntimeError("CUDA error: device-side assert triggered")
        return batch[:, 0].int()
