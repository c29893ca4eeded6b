"""The recipe for transcription: a row and a subtitle for each segment of a recording."""

import re
import shutil

import pandas as pd
import pytest
import soundfile
from harness.jobs import run_job
from harness.live import ROOT

pytestmark = pytest.mark.slow

RECORDINGS = ROOT / "examples" / "recordings"
ENGLISH = ("harbour.flac", "kettle.mp3")
# A module with the interface of faster-whisper, because its models cannot be downloaded here.
FASTER_WHISPER = """
import os
from types import SimpleNamespace

import soundfile


class WhisperModel:
    def __init__(self, model_size_or_path, *, device, compute_type):
        with open(os.environ["LOADED"], "a") as log:
            log.write(f"{model_size_or_path} {device} {compute_type}\\n")

    def transcribe(self, audio, language=None, *, vad_filter):
        soundfile.info(audio)
        times = (0.0, 1.0), (3661.0, 3662.5)
        segments = (
            SimpleNamespace(start=start, end=end, text=f" {language} {number}")
            for number, (start, end) in enumerate(times, 1)
        )
        return segments, SimpleNamespace(language=language)
"""


@pytest.fixture
def spoken(tmp_path, monkeypatch):
    """Return a folder with two English recordings, a silent one and a damaged one."""
    monkeypatch.chdir(ROOT / "examples" / "recipes" / "transcription")
    folder = tmp_path / "spoken"
    folder.mkdir()
    for name in ENGLISH:
        shutil.copy(RECORDINGS / name, folder)
    soundfile.write(folder / "silence.wav", [0.0] * 32_000, 16_000)
    whole = (RECORDINGS / "harbour.flac").read_bytes()
    (folder / "damaged.flac").write_bytes(whole[: len(whole) // 2])
    return folder


def test_each_segment_is_a_row_and_a_subtitle(spoken, tmp_path):
    seen = []
    run_job(spoken, "transcribe:sphinx", tmp_path / "out", seen=seen)
    assert {one.input: one.kind for one in seen if one.kind != "ok"} == {"damaged.flac": "failed"}
    table = pd.read_parquet(tmp_path / "out" / "metadata.parquet")
    assert set(table["input"]) == {*ENGLISH}
    for name, segments in table.groupby("input"):
        assert segments["start"].is_monotonic_increasing
        assert (segments["start"] < segments["end"]).all()
        # The last frame of the segmenter is filled with zeros.
        assert segments["end"].max() < soundfile.info(RECORDINGS / name).duration + 0.1
        (output,) = segments["output"].unique()
        text = (tmp_path / "out" / output).read_text()
        assert re.findall(r"^(?!\d+$|.* --> ).+", text, re.MULTILINE) == [*segments["text"]]
    again = []
    run_job(spoken, "transcribe:sphinx", tmp_path / "out", seen=again)
    assert again == []


def test_whisper_is_loaded_once_in_each_worker(spoken, tmp_path, monkeypatch):
    (tmp_path / "faster_whisper.py").write_text(FASTER_WHISPER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("LOADED", str(tmp_path / "loaded"))
    (spoken / "damaged.flac").unlink()  # A failure would replace its worker.
    run_job(
        spoken, "transcribe:whisper", tmp_path / "out", num_workers=1, cores=1, model="tiny",
        language="en",
    )  # fmt: skip
    assert (tmp_path / "loaded").read_text() == "tiny auto default\n"
    table = pd.read_parquet(tmp_path / "out" / "metadata.parquet")
    assert table["text"].tolist() == ["en 1", "en 2"] * (len(ENGLISH) + 1)
    assert (tmp_path / "out" / table["output"][0]).read_text() == (
        "1\n00:00:00,000 --> 00:00:01,000\nen 1\n\n2\n01:01:01,000 --> 01:01:02,500\nen 2\n"
    )


def test_the_page_shows_the_step():
    page = (ROOT / "docs" / "recipes" / "transcription.md").read_text()
    step = (ROOT / "examples" / "recipes" / "transcription" / "transcribe.py").read_text()
    (shown,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert "@cache" in shown
    assert shown in step
