"""Test log-mel spectrograms: published filters, correct bands and frames, stable bytes."""

import hashlib
import math
import subprocess
import sys

import numpy as np
import pytest
import soundfile
from harness.jobs import run_job

from batchmill.steps.audio import split
from batchmill.steps.spectrogram import log_mel, mel_filters

RATE = 16_000


def tone(hz, seconds=1.0, rate=RATE, level=1.0):
    return level * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate)


@pytest.fixture
def image_of(tmp_path):
    """Return a function that returns a sound's spectrogram and its row."""

    def make(samples, rate=RATE, **params):
        source = tmp_path / "a.wav"
        soundfile.write(source, samples, rate, subtype="FLOAT")
        (row,) = log_mel(source, tmp_path, **params)
        return np.load(tmp_path / row["output"]), row

    return make


def test_filters_have_the_values_in_the_librosa_documentation():
    """The start of the first two filters of librosa.filters.mel(sr=22050, n_fft=2048)."""
    bank = mel_filters(22_050, 2048, 128, 0.0, 11_025.0)
    first = [0, 0.016182853208219942, 0.032365706416439884, 0.028990088037379964]
    first += [0.012807234829160026, 0]
    second = [0, 0, 0, 0.009779235793639925, 0.025962089001859864, 0.035393705451959974]
    second += [0.01921085224374004, 0.003027999035520103, 0]
    assert bank.shape == (128, 1025)
    assert np.allclose(bank[0, :6], first, rtol=1e-12)
    assert np.allclose(bank[1, :9], second, rtol=1e-12)


def test_filters_follow_the_published_formula_above_1000_hz():
    """Slaney's formula is f = 1000 * 6.4 ** ((mel - 15) / 27)."""

    def hz(mel):
        return mel * 200 / 3 if mel < 15 else 1000 * 6.4 ** ((mel - 15) / 27)

    top = 15 + 27 * math.log(8) / math.log(6.4)  # 8000 Hz
    edges = [hz(top * number / 11) for number in range(12)]
    bank = mel_filters(RATE, 512, 10, 0.0, 8000.0)
    for band, (low, middle, high) in enumerate(zip(edges, edges[1:], edges[2:], strict=False)):
        for position in range(257):
            at = position * RATE / 512
            height = min((at - low) / (middle - low), (high - at) / (high - middle))
            assert bank[band, position] == pytest.approx(
                max(0, height) * 2 / (high - low), abs=1e-12
            )


@pytest.mark.parametrize("hz", [300, 1000, 4000])
def test_a_tone_is_loudest_in_its_band(image_of, hz):
    image, row = image_of(tone(hz), n_mels=40)
    bank = mel_filters(RATE, 1024, 40, 0.0, 8000.0)
    assert image.dtype == np.float32
    assert image.shape == (row["mels"], row["frames"]) == (40, 1 + RATE // 256)
    assert image[:, 30].argmax() == bank[:, round(hz * 1024 / RATE)].argmax()


def test_levels_follow_the_formula(image_of):
    """A tone of amplitude a in the middle of bin k has power (a * n_fft / 4)^2 there (Hann)."""
    image, _ = image_of(tone(1000, level=0.5), n_mels=40, top_db=None)
    bank = mel_filters(RATE, 1024, 40, 0.0, 8000.0)
    power = np.zeros(513)
    power[64] = (0.5 * 1024 / 4) ** 2
    power[[63, 65]] = (0.5 * 1024 / 8) ** 2
    band = bank[:, 64].argmax()
    assert image[band, 30] == pytest.approx(10 * math.log10(bank[band] @ power), abs=1e-3)


def test_frames_are_centred_and_silence_has_a_floor(image_of):
    click = np.zeros(RATE)
    click[256 * 20] = 1
    image, _ = image_of(click, top_db=None)
    assert image.max(axis=0).argmax() == 20
    assert image.min() == -100
    quiet, _ = image_of(click, top_db=30.0)
    assert quiet.max() - quiet.min() == pytest.approx(30)


def test_channels_are_averaged(image_of):
    left = tone(1000)
    assert image_of(np.stack([left, -left], axis=1), top_db=None)[0].max() == -100
    both, _ = image_of(np.stack([left, left], axis=1))
    assert np.array_equal(both, image_of(left)[0])


def test_a_resampled_recording_matches_one_at_the_new_rate(image_of):
    low, row = image_of(tone(1000, rate=44_100), rate=44_100, sample_rate=RATE)
    assert (row["sample_rate"], row["end"]) == (RATE, 1.0)
    same, _ = image_of(tone(1000))
    assert low.shape == same.shape
    assert np.abs(low - same)[:, 5:-5][same[:, 5:-5] > same.max() - 40].max() < 0.1


def test_resampling_does_not_alias(image_of):
    image, _ = image_of(tone(15_000, rate=44_100), rate=44_100, sample_rate=RATE, top_db=None)
    assert image[:, 5:-5].max() < -40


def test_clips_match_those_of_split(tmp_path):
    source = tmp_path / "a.wav"
    noise = np.random.default_rng(0).integers(-999, 999, 5 * RATE // 2).astype(np.int16)
    soundfile.write(source, noise, RATE)
    cut = {"seconds": 1, "overlap": 0.5}
    for folder in ("clips", "images", "image"):
        (tmp_path / folder).mkdir()
    clips = list(split(source, tmp_path / "clips", **cut))
    rows = list(log_mel(source, tmp_path / "images", **cut, sample_rate=8000))
    assert [(r["clip"], r["start"], r["end"]) for r in rows] == [
        (r["clip"], r["start"], r["end"]) for r in clips
    ]
    for clip, row in zip(clips, rows, strict=True):
        (whole,) = log_mel(
            tmp_path / "clips" / clip["output"], tmp_path / "image", sample_rate=8000
        )
        images = (tmp_path / "images" / row["output"], tmp_path / "image" / whole["output"])
        assert images[0].read_bytes() == images[1].read_bytes()
    left_out = list(log_mel(source, tmp_path / "images", seconds=2, include_last=False))
    assert [row["end"] for row in left_out] == [2.0]


@pytest.mark.parametrize(
    ("params", "fault"),
    [
        ({"fmax": 9000.0}, "from fmin .* half the sample rate"),
        ({"fmin": 500.0, "fmax": 400.0}, "must lie within 0 and 8000 Hz"),
        ({"n_mels": 128, "n_fft": 256}, "narrower than the 62.5 Hz"),
        ({"seconds": 1, "overlap": 1}, "overlap"),
    ],
)
def test_unsuitable_parameters_are_rejected(image_of, params, fault):
    with pytest.raises(ValueError, match=fault):
        image_of(tone(1000), **params)


@pytest.mark.slow
def test_workers_and_threads_do_not_change_the_bytes(tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(4):
        noise = np.random.default_rng(number).standard_normal((RATE, 2)) / 9
        soundfile.write(tmp_path / "in" / f"{number}.wav", noise, RATE)
    datasets = []
    for workers, batch in ((1, 4), (2, 1)):
        output = tmp_path / f"out{workers}"
        run_job(
            tmp_path / "in", "batchmill.steps.spectrogram:log_mel", output,
            num_workers=workers, batch_size=batch, sample_rate=22_050, seconds=0.4,
        )  # fmt: skip
        datasets.append({p.relative_to(output): p.read_bytes() for p in output.rglob("*.npy")})
    assert len(datasets[0]) == 12
    assert datasets[0] == datasets[1]
    digests = {hashlib.sha256(b"".join(datasets[0][key] for key in sorted(datasets[0]))).digest()}
    for threads in ("1", "4"):
        script = (
            "import hashlib, pathlib, sys; from batchmill.steps.spectrogram import log_mel\n"
            "folder, data = pathlib.Path(sys.argv[1]), b''\n"
            "for path in sorted((folder / 'in').iterdir()):\n"
            "    for row in log_mel(path, folder, sample_rate=22050, seconds=0.4):\n"
            "        data += (folder / row['output']).read_bytes()\n"
            "sys.stdout.buffer.write(hashlib.sha256(data).digest())"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)],
            env={"OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads},
            capture_output=True,
            check=True,
        )
        digests.add(done.stdout)
    assert len(digests) == 1
