"""Compare `batchmill infer` with a bare torch loop on a GPU, in about five minutes.

    python -m benchmarks.gpu [--workers 14]

It prints the table of `benchmarks.inference` for two networks, one like ResNet-18 and one ten times
heavier, and for two kinds of inputs of 224 x 224 pixels: arrays, which need no decoding, and JPEG
pictures.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

import torch

from benchmarks.inference import (
    COLUMNS,
    Work,
    compare,
    make_inputs,
    measure_batchmill,
    save_weights,
)
from benchmarks.machine import describe

PIXELS = 224
KINDS = {"npy": "arrays", "jpg": "JPEG"}


def main() -> None:
    """Print the table. Ends with exit code 2 if torch finds no GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 1) - 2))
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--inputs", type=int, default=24000)
    # The number of operations grows with the square of the width.
    parser.add_argument("--widths", type=int, nargs=2, default=[64, 202])
    options = parser.parse_args()
    on_gpu = options.device.startswith("cuda")
    if on_gpu and not torch.cuda.is_available():
        parser.error(f"{options.device}: torch {torch.__version__} finds no GPU on this machine.")
    gpu = torch.cuda.get_device_name(options.device) if on_gpu else None
    print(json.dumps(describe() | {"torch": torch.__version__, "gpu": gpu}))
    columns = ["network", "inputs", *COLUMNS]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    with tempfile.TemporaryDirectory(prefix="batchmill-benchmark-") as name:
        folder = Path(name)
        common = {"device": options.device, "workers": options.workers}
        networks = dict(zip(["ResNet-18", "10 times heavier"], options.widths, strict=True))
        for title, width in networks.items():
            save_weights(folder / title, width)
        # The first run creates Prefect's database.
        few = make_inputs(folder / "few", "npy", PIXELS, 8)
        weights = folder / "ResNet-18"
        measure_batchmill(Work(paths=few, batch_size=2, weights=weights, **common), folder)
        for kind, what in KINDS.items():
            paths = make_inputs(folder / kind, kind, PIXELS, options.inputs)
            for title in networks:
                work = Work(
                    paths=paths, batch_size=options.batch_size, weights=folder / title, **common
                )
                print(f"| {title} | {what} {compare(work, folder, rounds=1)}", flush=True)


if __name__ == "__main__":
    main()
