"""Models, written as users write them."""

import numpy as np
import torch


class Mean(torch.nn.Module):
    """Three scores for each sample: its mean, twice that, and one."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        mean = values.flatten(1).mean(1)
        return torch.stack([mean, 2 * mean, torch.ones_like(mean)], 1)


def mean():
    return Mean()


def doubled(x):
    """The model itself, not a function that makes one."""
    return 2 * x


class PerSample(torch.nn.Module):
    def forward(self, values, lengths, mask):
        return {"sum": (values * mask).sum(1), "length": lengths}


class Named(torch.nn.Module):
    def forward(self, left, right):
        return left + right


def scaled(path):
    factor = torch.load(path, weights_only=True)["factor"]
    return lambda values: factor * values.flatten(1).mean(1)


class Logarithm(torch.nn.Module):
    """Three scores for each sample: NaN for negative values."""

    def forward(self, values):
        return values.flatten(1)[:, :3].log()


class Optional(torch.nn.Module):
    def forward(self, values):
        return [{"score": None if float(v.sum()) < 0 else float(v.sum())} for v in values]


class Pair(torch.nn.Module):
    def forward(self, values):
        return values.flatten(1).mean(1), values.flatten(1).sum(1)


class Boxes(torch.nn.Module):
    """Return a list with a dict for each sample, like a detector."""

    def forward(self, values):
        boxes = values.flatten(1).mean(dim=1)[:, None, None].expand(-1, 2, 4).contiguous()
        return [{"boxes": one, "count": 2} for one in boxes]


class Halves(Mean):
    """Three scores as numbers of 16 bits that NumPy does not have."""

    def forward(self, values):
        return super().forward(values).bfloat16()


class TooLarge(Mean):
    """Does not fit into the memory of its device."""

    def to(self, *_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 90 GiB.\nA hint.")


class LookUp(torch.nn.Module):
    """A table of ten numbers. After an index that is too large, a GPU returns only errors."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding.from_pretrained(torch.arange(10.0)[:, None])

    def forward(self, values):
        return {"entry": self.table(values.flatten(1)[:, 0].long())[:, 0]}


class Quarters(torch.nn.Module):
    """Needs a quarter of the GPU's memory for each sample. Returns the size of the batch."""

    def forward(self, values):
        _, total = torch.cuda.mem_get_info()
        held = [torch.empty(total // 4, dtype=torch.uint8, device=values.device) for _ in values]
        return {"batch": [len(held)] * len(values)}


class Heavy(torch.nn.Module):
    """Needs more memory than the GPU has for a sample with a number above 50."""

    def forward(self, values):
        _, total = torch.cuda.mem_get_info()
        size = 2 * total if float(values.max()) > 50 else 1
        held = torch.empty(size, dtype=torch.uint8, device=values.device)
        return {"bytes": [len(held)] * len(values)}


class Resident(torch.nn.Module):
    """Keeps a quarter of the GPU's memory. Returns how much is free."""

    def forward(self, values):
        free, total = torch.cuda.mem_get_info()
        if not hasattr(self, "kept"):
            self.kept = torch.empty(total // 4, dtype=torch.uint8, device=values.device)
            free, _ = torch.cuda.mem_get_info()
        return {"free": [free] * len(values)}


class TimeFirst(torch.nn.Module):
    def forward(self, values):
        return torch.zeros(7, len(values), 3)


def broken():
    raise RuntimeError("no weights here")


number = 5


def half(path):
    """Load a sample with a custom function."""
    return torch.full((2,), float(path.read_text()) / 2)


def pair(path):
    value = torch.tensor(float(path.read_text()))
    return {"left": value, "right": -2 * value}


def mean_in_worker(source):
    """A step, not a model: each DataLoader worker uses the GPU."""
    values = torch.from_numpy(np.load(source)).cuda()
    return {"mean": values.mean().item()}
