"""A torch Dataset that was written for training. batchmill runs it as a step without changes."""

from torch.utils.data import Dataset


class WordSplitter(Dataset):
    def __init__(self, inputs, num_chars=2, overlap=1):
        self.inputs = inputs
        self.num_chars = num_chars
        self.overlap = overlap

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        with open(self.inputs[index]) as file:
            word = file.read().strip()
        last = len(word) - self.num_chars
        starts = range(0, last + 1, self.num_chars - self.overlap)
        return [word[start : start + self.num_chars] for start in starts]

    @classmethod
    def collate_fn(*batch):
        return batch[1]
