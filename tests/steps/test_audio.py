"""Test cutting recordings into clips: exact samples, constant memory, clear errors."""

import subprocess
import sys

import numpy as np
import pytest
import soundfile

from batchmill.steps.audio import split

RATE = 8000


def tone(seconds, channels=1, dtype="int16"):
    count = round(seconds * RATE)
    wave = np.sin(np.arange(count * channels) * 0.05).reshape(count, channels) * 0.5
    return (wave * np.iinfo(dtype).max).astype(dtype) if dtype.startswith("int") else wave


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("form", "subtype", "kept", "dtype"),
    [
        ("WAV", "PCM_16", "PCM_16", "int16"),
        ("WAV", "PCM_24", "PCM_24", "int32"),
        ("WAV", "PCM_32", "PCM_32", "int32"),
        ("WAV", "PCM_U8", "PCM_U8", "int16"),
        ("WAV", "FLOAT", "FLOAT", "float32"),
        ("WAV", "DOUBLE", "DOUBLE", "float64"),
        ("WAV", "ULAW", "ULAW", "int16"),
        ("FLAC", "PCM_16", "PCM_16", "int16"),
        ("FLAC", "PCM_24", "PCM_24", "int32"),
        ("FLAC", "PCM_S8", "PCM_U8", "int16"),
    ],
)
def test_no_sample_is_changed(tmp_path, out, form, subtype, kept, dtype):
    source = tmp_path / f"a.{form.lower()}"
    soundfile.write(source, tone(2.5, channels=2), RATE, format=form, subtype=subtype)
    rows = list(split(source, out, seconds=1))
    clips = [soundfile.read(out / row["output"], dtype=dtype) for row in rows]
    whole, _ = soundfile.read(source, dtype=dtype)
    assert np.array_equal(np.concatenate([clip for clip, _ in clips]), whole)
    assert {soundfile.info(out / row["output"]).subtype for row in rows} == {kept}
    assert {rate for _, rate in clips} == {RATE}


@pytest.mark.parametrize(("form", "subtype"), [("OGG", "VORBIS"), ("MP3", "MPEG_LAYER_III")])
def test_compressed_sound_becomes_16_bit(tmp_path, out, form, subtype):
    source = tmp_path / f"a.{form.lower()}"
    soundfile.write(source, tone(3), RATE, format=form, subtype=subtype)
    rows = list(split(source, out, seconds=1))
    assert soundfile.info(out / rows[0]["output"]).subtype == "PCM_16"
    with soundfile.SoundFile(source) as recording:
        whole = recording.read()
    clips = [soundfile.read(out / row["output"])[0] for row in rows]
    assert np.allclose(np.concatenate(clips), whole, atol=1e-4)


def test_rows_describe_the_source_of_a_clip(tmp_path, out):
    source = tmp_path / "a.wav"
    samples = np.zeros((RATE * 2 + 400, 2), np.int16)
    samples[10] = -32768
    soundfile.write(source, samples, RATE)
    assert list(split(source, out, seconds=2)) == [
        {
            "output": "0000.wav",
            "source": "a.wav",
            "clip": 0,
            "start": 0.0,
            "end": 2.0,
            "sample_rate": RATE,
            "channels": 2,
            "peak": 1.0,
        },
        {
            "output": "0001.wav",
            "source": "a.wav",
            "clip": 1,
            "start": 2.0,
            "end": 2.05,
            "sample_rate": RATE,
            "channels": 2,
            "peak": 0.0,
        },
    ]


@pytest.mark.parametrize(
    ("seconds", "overlap", "include_last", "expected"),
    [
        (1, 0, True, [(0, 1), (1, 2), (2, 2.5)]),
        (1, 0, False, [(0, 1), (1, 2)]),
        (1, 0.5, True, [(0, 1), (0.5, 1.5), (1, 2), (1.5, 2.5)]),
        (2, 0.5, True, [(0, 2), (1.5, 2.5)]),
        (2.5, 1, True, [(0, 2.5)]),
        (9, 0, True, [(0, 2.5)]),
        (9, 0, False, []),
    ],
)
def test_windows(tmp_path, out, seconds, overlap, include_last, expected):
    source = tmp_path / "a.flac"
    samples = tone(2.5)
    soundfile.write(source, samples, RATE)
    rows = list(split(source, out, seconds=seconds, overlap=overlap, include_last=include_last))
    assert [(row["start"], row["end"]) for row in rows] == expected
    for row in rows:
        clip, _ = soundfile.read(out / row["output"], dtype="int16")
        begin, end = round(row["start"] * RATE), round(row["end"] * RATE)
        assert np.array_equal(clip, samples[begin:end, 0])


def test_an_overlap_of_the_whole_clip_is_rejected(tmp_path, out):
    soundfile.write(tmp_path / "a.wav", tone(1), RATE)
    with pytest.raises(ValueError, match="overlap"):
        list(split(tmp_path / "a.wav", out, seconds=1, overlap=1))


def test_an_empty_recording_is_rejected(tmp_path, out):
    soundfile.write(tmp_path / "a.wav", np.zeros((0, 1), np.int16), RATE)
    with pytest.raises(ValueError, match="0 frames"):
        list(split(tmp_path / "a.wav", out))


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.ogg", "a.mp3"])
def test_a_truncated_recording_is_rejected(tmp_path, out, name):
    source = tmp_path / name
    noise = np.random.default_rng(0).integers(-9999, 9999, 5 * RATE).astype(np.int16)
    soundfile.write(source, noise, RATE)
    source.write_bytes(source.read_bytes()[: source.stat().st_size // 2])
    for include_last in (True, False):
        with pytest.raises((ValueError, soundfile.LibsndfileError)):
            list(split(source, out, seconds=1, include_last=include_last))


def test_a_clip_may_be_longer_than_the_memory(tmp_path, out):
    soundfile.write(tmp_path / "a.wav", tone(1), RATE)
    (row,) = split(tmp_path / "a.wav", out, seconds=1e9)
    assert row["end"] == 1.0


def test_a_file_that_is_not_a_recording_is_rejected(tmp_path, out):
    (tmp_path / "a.wav").write_bytes(b"RIFF nothing of the kind")
    with pytest.raises(soundfile.LibsndfileError):
        list(split(tmp_path / "a.wav", out))


@pytest.mark.slow
def test_memory_does_not_grow_with_the_recording(tmp_path):
    """Compare the peak memory for a recording of 10 s and one of 20 minutes (115 MB)."""
    peaks = []
    for seconds in (10, 1200):
        source = tmp_path / f"{seconds}.wav"
        with soundfile.SoundFile(source, "w", 48_000, 1, "PCM_16") as file:
            for _ in range(seconds // 10):
                file.write(np.zeros(480_000, np.int16))
        folder = tmp_path / f"out{seconds}"
        folder.mkdir()
        # `ru_maxrss` of Linux is never less than what this process used when it started the other.
        script = (
            "from pathlib import Path; from batchmill.steps.audio import split;"
            f"list(split(Path({str(source)!r}), Path({str(folder)!r}), seconds=5));"
            "print(Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
        peaks.append(int(done.stdout) * 1024)
    assert peaks[1] - peaks[0] < 20 * 2**20
