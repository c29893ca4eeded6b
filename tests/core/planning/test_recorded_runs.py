"""Forecasts hold for recorded runs: `python -m benchmarks.forecast --record` has made the records.

Each record has the inputs of two runs: that of a sample, and that of all other inputs.
"""

import json
from pathlib import Path

import pyarrow as pa

from batchmill.core.ledger.open import open_output
from batchmill.core.ledger.parts import Origin
from batchmill.core.outcome import Outcome
from batchmill.core.planning.forecast import make_forecast

RECORDS = Path(__file__).with_name("recorded_runs.jsonl").read_text().splitlines()


def forecast_of(folder, record):
    """Return the forecast for the second run of a record, from its first run."""
    ledger = open_output(str(folder))
    ledger.create()
    sample, seconds = record["before"]
    committed = [
        (Outcome(name, name, kind, attempts, took, end, "", size=size), Origin("{}", "step", 1))
        for name, size, kind, attempts, took, end in sample
    ]
    ledger.commit("000001-x", committed)
    ledger.write_summary(1, {"seconds": seconds})
    others, _ = record["after"]
    names, sizes, *_ = zip(*others, strict=True)
    inputs = pa.table([names, sizes, ["new"] * len(names)], ["input", "size", "reason"])
    return make_forecast(ledger, ledger.state(), "step", inputs)


def test_nine_of_ten_runs_are_within_the_interval_of_their_forecast(tmp_path):
    found = {"seconds": [], "failures": []}
    for number, line in enumerate(RECORDS):
        record = json.loads(line)
        forecast = forecast_of(tmp_path / str(number), record)
        others, seconds = record["after"]
        real = {"seconds": seconds, "failures": sum(one[2] != "ok" for one in others)}
        for name, value in real.items():
            low, likely, high = getattr(forecast, name)
            text = f"{record['kind']}: {value:.1f}, forecast {likely:.1f} ({low:.1f} to {high:.1f})"
            found[name].append((low <= value <= high, text))
    assert len(RECORDS) >= 30
    for name, runs in found.items():
        outside = [text for is_inside, text in runs if not is_inside]
        assert len(outside) <= len(runs) / 10, (name, outside)
