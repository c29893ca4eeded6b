"""Test that all audio steps accept unusual recordings and reject damaged ones."""

import numpy as np
import pytest
import soundfile
from harness.bad_recordings import DAMAGED, UNUSUAL

from batchmill.steps.audio import split
from batchmill.steps.spectrogram import log_mel

STEPS = [
    (split, {"seconds": 1}),
    (log_mel, {"seconds": 1, "n_mels": 20}),
    (log_mel, {"n_mels": 20}),
]
each_step = pytest.mark.parametrize(
    ("step", "params"), STEPS, ids=["split", "log_mel of clips", "log_mel of all"]
)


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@each_step
@pytest.mark.parametrize("name", UNUSUAL)
def test_an_unusual_recording_is_read_to_its_end(tmp_path, out, name, step, params):
    source = tmp_path / name
    source.write_bytes(UNUSUAL[name](source))
    with soundfile.SoundFile(source) as recording:
        seconds = recording.frames / recording.samplerate
    rows = list(step(source, out, **params))
    assert rows[-1]["end"] == pytest.approx(seconds)
    assert {row["output"] for row in rows} == {path.name for path in out.iterdir()}
    if step is log_mel:
        for row in rows:
            image = np.load(out / row["output"])
            assert image.shape == (20, row["frames"])
            assert np.isfinite(image).all()


@each_step
@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_recording_is_rejected(tmp_path, out, name, step, params):
    make, reason = DAMAGED[name]
    source = tmp_path / name
    source.write_bytes(make(source))
    with pytest.raises((ValueError, soundfile.LibsndfileError), match=reason or None):
        list(step(source, out, **params))
