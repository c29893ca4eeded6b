"""Compare `batchmill infer` with a bare torch loop, on the CPU or a GPU.

    python -m benchmarks.inference [--rounds 3]
    python -m benchmarks.inference --device cuda --workers 16 --inputs 16000 --pixels 256
        --width 64 --batch-sizes 32 128 512

Both read the same pictures with the same number of DataLoader workers, call the same convolutional
network, and write a table with the class of each picture. The bare loop uses pinned memory on a
GPU. Inputs per second are counted from the end of the first tenth of the inputs. So they leave out
the start-up and the first calls of the GPU, which are part of the seconds of the whole commands.
`model alone` calls the network with one batch that stays on the device. The use of the GPU is what
nvidia-smi reports during the counted time. Rounds alternate, and medians are printed.
"""

import argparse
import json
import multiprocessing
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from batchmill.core.ledger.ledger import Ledger
from batchmill.core.storage import LocalStore
from benchmarks.machine import describe
from benchmarks.startup import environment

SIDES = ("bare loop", "batchmill")
COLUMNS = (
    "batch",
    *(f"{one}, inputs/s" for one in ("model alone", *SIDES)),
    "ratio",
    *(f"{one}, {unit}" for unit in ("s", "GPU %") for one in SIDES),
)
CLASSES = 100
# The first batches are slower: a GPU compiles and measures its kernels.
WARM_UP = 0.1
ALONE_SECONDS = 2.0
# The pictures repeat after this number. Each has a file of its own.
DIFFERENT = 64
# The last digits depend on the batch, so a picture with two best classes may get either.
AGREEMENT = 0.9


class Block(nn.Module):
    """Two convolutions whose result is added to their input, as in a ResNet."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(inplace=True),
            nn.Conv2d(outside, outside, 3, padding=1, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.short_cut = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return the features of a batch."""
        return nn.functional.relu(self.convolutions(values) + self.short_cut(values))


class Net(nn.Module):
    """A network of the size of ResNet-18 if `width` is 64."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = [width, width, 2 * width, 4 * width, 8 * width]
        blocks = [
            block
            for inside, outside in pairwise(sizes)
            for block in (Block(inside, outside, 2), Block(outside, outside, 1))
        ]
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, padding=3),
            *blocks,
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8 * width, CLASSES),
        )

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return a score per class for a batch of pixels from 0 to 255."""
        scores: torch.Tensor = self.layers(pixels.float() / 127.5 - 1)
        return scores


def save_weights(path: Path, width: int) -> None:
    """Write the random weights of a network, the same each time."""
    torch.manual_seed(0)
    torch.save({"width": width, "state": Net(width).state_dict()}, path)


def make_model(weights: str) -> Net:
    """Return the network whose weights are in a file."""
    saved = torch.load(weights, weights_only=True)
    model = Net(saved["width"])
    model.load_state_dict(saved["state"])
    return model


def make_inputs(folder: Path, kind: str, pixels: int, count: int) -> list[Path]:
    """Write pictures of colours that change slowly, with some noise, and return their paths."""
    folder.mkdir()
    numbers = np.random.default_rng(0)
    contents = []
    for number in range(min(count, DIFFERENT)):
        coarse = Image.fromarray(numbers.integers(0, 256, (8, 8, 3), np.uint8))
        smooth = np.asarray(coarse.resize((pixels, pixels), Image.Resampling.BICUBIC), np.int16)
        noise = numbers.integers(-8, 9, smooth.shape, np.int16)
        picture = np.clip(smooth + noise, 0, 255).astype(np.uint8)
        path = folder / f"{number}.{kind}"
        if kind == "npy":
            np.save(path, picture.transpose(2, 0, 1))
        else:
            Image.fromarray(picture).save(path, quality=85)
        contents.append(path.read_bytes())
        path.unlink()
    paths = [folder / f"{number:06}.{kind}" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(contents[number % len(contents)])
    return paths


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """The pixels of each file, and its number."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = [str(path) for path in paths]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path = self.paths[index]
        if path.endswith(".npy"):
            return torch.from_numpy(np.load(path)), index
        with Image.open(path) as image:
            pixels = np.array(image.convert("RGB"))
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))), index


@dataclass(frozen=True, kw_only=True)
class Work:
    """Pictures, the weights of the network, and how to process them."""

    paths: Sequence[Path]
    weights: Path
    device: str
    batch_size: int
    workers: int


class Measured(NamedTuple):
    """One run: seconds of the whole command, inputs per second, and use of the GPU in percent.

    `classes` has the class of each picture, in the order of the paths.
    """

    seconds: float
    rate: float
    gpu: float | None
    classes: list[str]


class GpuUse:
    """Samples the use of the GPU during a block, with nvidia-smi."""

    def __init__(self, device: str) -> None:
        self._command = shutil.which("nvidia-smi") if device.startswith("cuda") else None
        self._samples: list[tuple[float, float]] = []

    def __enter__(self) -> Self:
        if self._command:
            query = ["--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "100"]
            self._process = subprocess.Popen(
                [self._command, *query], stdout=subprocess.PIPE, text=True
            )
            self._thread = threading.Thread(target=self._read)
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._command:
            self._process.terminate()
            self._process.wait()
            self._thread.join()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            if line.strip().isdecimal():
                self._samples.append((time.time(), float(line)))

    def between(self, begin: float, end: float) -> float | None:
        """Return the mean between two times; None if there is no sample."""
        found = [use for at, use in self._samples if begin <= at <= end]
        return statistics.mean(found) if found else None


def counted_time(ends: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the first tenth of the inputs and of the last input."""
    ordered = sorted(ends)
    return ordered[int(len(ordered) * WARM_UP)], ordered[-1]


def rate_of(ends: Sequence[float]) -> float:
    """Return the inputs per second between the two times of `counted_time`."""
    begin, end = counted_time(ends)
    return sum(begin < one for one in ends) / (end - begin)


def run_bare(work: Work, out: Path) -> list[float]:
    """Run the network in a bare loop, and write a table. Return when each input was done."""
    on_gpu = work.device.startswith("cuda")
    model = make_model(str(work.weights)).to(work.device).eval()
    loader = DataLoader(
        Pictures(work.paths),
        batch_size=work.batch_size,
        num_workers=work.workers,
        pin_memory=on_gpu,
    )
    ends: list[float] = []
    names: list[str] = []
    predicted: list[str] = []
    probability: list[float] = []
    with torch.inference_mode():
        for pixels, numbers in loader:
            scores = model(pixels.to(work.device, non_blocking=True))
            best, classes = scores.softmax(1).max(1)
            names += [work.paths[number].name for number in numbers.tolist()]
            predicted += [f"{number}" for number in classes.tolist()]
            probability += best.tolist()
            ends += [time.time()] * len(numbers)
    table = {"input": names, "predicted": predicted, "probability": probability}
    pq.write_table(pa.table(table), out)
    return ends


def model_alone(work: Work) -> float:
    """Return the inputs per second of the network, with a batch that stays on the device."""
    model = make_model(str(work.weights)).to(work.device).eval()
    picture, _ = Pictures(work.paths)[0]
    batch = picture.repeat(work.batch_size, 1, 1, 1).to(work.device)
    with torch.inference_mode():
        model(batch).sum().item()
        begun, calls = time.perf_counter(), 0
        while (seconds := time.perf_counter() - begun) < ALONE_SECONDS:
            model(batch).sum().item()  # Waits for the device.
            calls += 1
    return calls * work.batch_size / seconds


def in_new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a new process, which imports torch like any command."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def measure_bare(work: Work, folder: Path) -> Measured:
    """Run the bare loop as a process of its own."""
    table = Path(tempfile.mkdtemp(dir=folder), "table.parquet")
    begun = time.perf_counter()
    with GpuUse(work.device) as gpu:
        ends = in_new_process(run_bare, work, table)
        seconds = time.perf_counter() - begun
    return _measured(seconds, ends, gpu, table)


def measure_batchmill(work: Work, folder: Path) -> Measured:
    """Run `batchmill infer`, without a Prefect server."""
    out = Path(tempfile.mkdtemp(dir=folder), "out")
    command = [sys.executable, "-m", "batchmill", "infer", str(work.paths[0].parent)]
    command += ["--model", "benchmarks.inference:make_model", "--weights", str(work.weights)]
    command += ["--classes", ",".join(map(str, range(CLASSES))), "--device", work.device]
    command += ["--batch-size", f"{work.batch_size}", "--num-workers", f"{work.workers}"]
    begun = time.perf_counter()
    with GpuUse(work.device) as gpu:
        done = subprocess.run(
            [*command, "--output", str(out)],
            env=environment(folder / "prefect"),
            cwd=Path(__file__).parents[1],
            capture_output=True,
            text=True,
        )
        seconds = time.perf_counter() - begun
    if done.returncode:
        raise RuntimeError(f"batchmill infer ended with {done.returncode}:\n{done.stderr}")
    ends = Ledger(LocalStore(out)).records(["finished_at"])["finished_at"].to_pylist()
    return _measured(seconds, ends, gpu, out / "metadata.parquet")


def _measured(seconds: float, ends: Sequence[float], gpu: GpuUse, table: Path) -> Measured:
    rows = pd.read_parquet(table, columns=["input", "predicted"]).sort_values("input")
    return Measured(
        seconds, rate_of(ends), gpu.between(*counted_time(ends)), rows["predicted"].tolist()
    )


def compare(work: Work, folder: Path, rounds: int) -> str:
    """Measure both in turn, and return a row of the table. Raises RuntimeError if they differ."""
    sides: dict[Any, list[Measured]] = {measure_bare: [], measure_batchmill: []}
    for _ in range(rounds):
        for measure, found in sides.items():
            found.append(measure(work, folder))
    bare, ours = sides.values()
    for one, other in zip(bare, ours, strict=True):
        same = [a == b for a, b in zip(one.classes, other.classes, strict=True)]
        if len(same) != len(work.paths) or statistics.mean(same) < AGREEMENT:
            raise RuntimeError(f"the classes of {sum(same)} of {len(work.paths)} inputs agree")
    rates = [statistics.median(run.rate for run in runs) for runs in (bare, ours)]
    seconds = [statistics.median(run.seconds for run in runs) for runs in (bare, ours)]
    cells = [f"{work.batch_size}", f"{in_new_process(model_alone, work):,.0f}"]
    cells += [*(f"{rate:,.0f}" for rate in rates), f"{rates[1] / rates[0]:.2f}"]
    cells += [f"{one:.1f}" for one in seconds]
    for runs in (bare, ours):
        uses = [run.gpu for run in runs if run.gpu is not None]
        cells.append(f"{statistics.median(uses):.0f}" if uses else "")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print a table with a row per batch size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--inputs", type=int, default=2000)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kind", choices=["jpg", "npy"], default="jpg")
    parser.add_argument("--pixels", type=int, default=128)
    parser.add_argument("--width", type=int, default=16, help="of the network; 64: ResNet-18")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    on_gpu = options.device.startswith("cuda")
    gpu = torch.cuda.get_device_name(options.device) if on_gpu else None
    print(json.dumps(describe() | {"torch": torch.__version__, "gpu": gpu}))
    print(
        f"{options.inputs:,} {options.kind} of {options.pixels} x {options.pixels} pixels, "
        f"{options.workers} workers, width {options.width}, {options.device}\n",
        flush=True,
    )
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    with tempfile.TemporaryDirectory(prefix="batchmill-benchmark-") as name:
        folder = Path(name)
        weights = folder / "weights.pt"
        save_weights(weights, options.width)
        common = {"weights": weights, "device": options.device, "workers": options.workers}
        # The first run creates Prefect's database.
        few = make_inputs(folder / "few", options.kind, options.pixels, 8)
        measure_batchmill(Work(paths=few, batch_size=2, **common), folder)
        paths = make_inputs(folder / "inputs", options.kind, options.pixels, options.inputs)
        for batch_size in options.batch_sizes:
            work = Work(paths=paths, batch_size=batch_size, **common)
            print(compare(work, folder, options.rounds), flush=True)


if __name__ == "__main__":
    main()
