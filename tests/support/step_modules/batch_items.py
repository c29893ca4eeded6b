"""A batch step that is an object at module level."""

import torch
from torch.utils.data import TensorDataset


class Doubled(TensorDataset):
    def process_batch(self, batch):
        (numbers,) = batch
        return 2 * numbers


three = Doubled(torch.tensor([1, 2, 3]))
