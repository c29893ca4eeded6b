"""Batch steps with two phases, on a device that is only imitated."""

import threading
import time
from pathlib import Path
from typing import ClassVar

import torch
from batch_steps import Lengths


class OnDevice(Lengths):
    """Return the length of each text. The device computes it when its result is read.

    A line of the file `log` has the number of batches on the device, after each beginning. `room`
    is the number of samples that the device has memory for. A bad sample gives an error when its
    result is read.
    """

    pin_memory = True
    on_device: ClassVar[list[int]] = []  # The sizes of the batches.
    broken = False

    def __init__(self, inputs, log: str = "", room: int = 1000):
        super().__init__(inputs)
        self.log, self.room = log, room

    def process_batch(self, batch):
        return self.begin_batch(batch)()

    def begin_batch(self, batch):
        self._check()
        if sum(OnDevice.on_device) + len(batch) > self.room:
            batch.zero_()  # The step may have changed its data.
            raise torch.OutOfMemoryError("CUDA out of memory.")
        OnDevice.on_device.append(len(batch))
        if self.log:
            with open(self.log, "a") as file:
                file.write(f"{len(OnDevice.on_device)}\n")
        return lambda: self._read(batch)

    def _read(self, batch):
        OnDevice.on_device.remove(len(batch))
        self._check()
        if batch[:, 1].any():
            raise ValueError("the model returned NaN")
        return {"length": batch[:, 0].int()}

    def _check(self):
        if OnDevice.broken:
            raise RuntimeError("CUDA error: device-side assert triggered")


class Watched(OnDevice):
    """Report whether a watchdog limits the time to read the results."""

    def _read(self, batch):
        is_watched = any(thread.name == "watchdog" for thread in threading.enumerate())
        return super()._read(batch) | {"watched": [is_watched] * len(batch)}


class Hangs(OnDevice):
    """The device never returns the result of a bad sample."""

    def _read(self, batch):
        if batch[:, 1].any():
            time.sleep(3600)
        return super()._read(batch)


class BreaksLate(OnDevice):
    """A bad sample breaks the device, which is noticed at its next use."""

    def begin_batch(self, batch):
        finish = super().begin_batch(batch)
        OnDevice.broken = bool(batch[:, 1].any())
        return finish


class WaitsForTheFirst(OnDevice):
    """Load the second input only when the result of the first has been read."""

    def __getitem__(self, index):
        while index and not Path(f"{self.log}.read").exists():
            time.sleep(0.01)
        return super().__getitem__(index)

    def _read(self, batch):
        Path(f"{self.log}.read").touch()
        return super()._read(batch)


class Differ(OnDevice):
    """Take output folders in one of the two methods only."""

    def process_batch(self, batch, outs):
        return super().process_batch(batch)
