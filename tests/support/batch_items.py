"""An object that is a batch step, at the top of a module."""

import torch
from torch.utils.data import TensorDataset


class Doubled(TensorDataset):
    def process_batch(self, batch):
        (numbers,) = batch
        return 2 * numbers


three = Doubled(torch.tensor([1, 2, 3]))
