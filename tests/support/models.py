"""Models, written as users write them."""

import torch


class Mean(torch.nn.Module):
    """Three scores for each sample: its mean, twice that, and one."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        mean = values.flatten(1).mean(1)
        return torch.stack([mean, 2 * mean, torch.ones_like(mean)], 1)


def mean():
    return Mean()


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
        return [{"boxes": torch.full((2, 4), float(v.mean())), "count": 2} for v in values]


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
