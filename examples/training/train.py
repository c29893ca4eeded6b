"""Train a small network to classify bird songs by their spectrograms.

python train.py DATASET MODEL.pt2
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader

import batchmill

EPOCHS = 12


class Classifier(nn.Module):
    """Map spectrograms [batch, mels, frames] in dB to a score for each class [batch, classes]."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=2, padding=2),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 5, stride=2, padding=2),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d((4, 4)),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, classes),
        )

    def forward(self, decibels: torch.Tensor) -> torch.Tensor:
        return self.layers((decibels.unsqueeze(1) + 60) / 20)


def accuracy(model: nn.Module, loader: DataLoader) -> float:
    """Return the share of samples whose true class has the highest score."""
    model.eval()
    with torch.inference_mode():
        right = [(model(batch.data).argmax(1) == batch.label).float() for batch in loader]
    return torch.cat(right).mean().item()


def main(dataset: str, file: str) -> None:
    """Train the model, print its validation accuracy, and save it."""
    torch.manual_seed(7)
    train = batchmill.open_dataset(dataset, partition="train")
    validation = batchmill.open_dataset(dataset, partition="validation")
    loader = DataLoader(train, batch_size=16, shuffle=True, num_workers=2)
    held_out = DataLoader(validation, batch_size=64)
    model = Classifier(len(train.classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(1, EPOCHS + 1):
        model.train()
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch.data), batch.label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(
            f"epoch {epoch:2}: loss {loss.item():.3f}, validation {accuracy(model, held_out):.1%}"
        )
    model.eval()
    example = torch.stack([train[0].data, train[1].data])
    # The batch size may vary, but the number of frames may not.
    program = torch.export.export(
        model, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},)
    )
    torch.export.save(program, file)
    print(f"{','.join(train.classes)} in {file}")


if __name__ == "__main__":
    main(*sys.argv[1:])
