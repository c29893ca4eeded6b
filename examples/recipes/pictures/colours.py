"""A model for batches of pictures: the name of their background's colour."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

COLOURS = {
    "white": (255, 255, 255),
    "yellow": (250, 200, 40),
    "green": (40, 110, 70),
    "blue": (20, 70, 140),
}


def load(path: str | Path) -> torch.Tensor:
    """Return a picture as [3, 32, 32], so that pictures of all sizes fit into one batch."""
    with Image.open(path) as picture:
        pixels = np.array(picture.convert("RGB").resize((32, 32)))
    return torch.from_numpy(pixels).permute(2, 0, 1)


class Colours(torch.nn.Module):
    """Compares the median colour of a picture with four colours."""

    def __init__(self):
        super().__init__()
        self.register_buffer("known", torch.tensor([*COLOURS.values()], dtype=torch.float32))

    def forward(self, pictures):
        median = pictures.float().flatten(2).median(dim=2).values
        nearest = torch.cdist(median, self.known).argmin(dim=1)
        return {"background": [[*COLOURS][index] for index in nearest.tolist()]}
