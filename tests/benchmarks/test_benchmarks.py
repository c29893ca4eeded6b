"""The comparison with other tools: the work, the race and the page; and the one of models."""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import soundfile

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SECONDS = 12.0


@pytest.fixture(autouse=True)
def _from_the_repository(monkeypatch):
    """Make `benchmarks` importable: it is not part of the package."""
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.fixture
def compare():
    import benchmarks.compare

    return benchmarks.compare


@pytest.fixture
def page():
    import benchmarks.page

    return benchmarks.page


@pytest.fixture
def work():
    import benchmarks.peers.work

    return benchmarks.peers.work


def test_the_dataset_of_the_benchmark_of_reading_can_be_opened(tmp_path):
    import batchmill
    from benchmarks.reading import publish

    publish(tmp_path / "dataset", 30)
    assert len(batchmill.open_dataset(tmp_path / "dataset")) == 30


@pytest.mark.parametrize("kind", ["words", "clips", "spectrograms"])
def test_inputs_are_the_same_each_time_and_differ_from_each_other(work, tmp_path, kind):
    for name in ("one", "two"):
        work.make_inputs(kind, 6, tmp_path / name, seconds=1.0)
    one, two = (
        [path.read_bytes() for path in sorted((tmp_path / name).iterdir())]
        for name in ("one", "two")
    )
    assert len(one) == 6
    assert one == two
    assert len({*one}) >= 4


def test_a_word_gives_a_row_and_no_file(work, tmp_path):
    (source,) = work.make_inputs("words", 1, tmp_path / "in")
    source.write_text("preprocessing\n")
    out = tmp_path / "out"
    out.mkdir()
    assert work.make_work("words")(source, out) == [
        {"input": source.name, "word": "preprocessing", "characters": 13, "first": "pre",
         "last": "ing"}
    ]  # fmt: skip
    assert not list(out.iterdir())


def test_the_clips_of_a_recording_cover_all_of_it(work, tmp_path):
    (source,) = work.make_inputs("clips", 1, tmp_path / "in", seconds=SECONDS)
    rows = work.make_work("clips")(source, tmp_path / "out")
    assert [row["output"] for row in rows] == [f"000000/{n:04d}.wav" for n in range(3)]
    parts = [soundfile.read(tmp_path / "out" / row["output"], dtype="int16")[0] for row in rows]
    assert [len(part) for part in parts] == [row["samples"] for row in rows]
    assert [abs(part.astype(int)).max() for part in parts] == [row["peak"] for row in rows]
    whole, rate = soundfile.read(source, dtype="int16")
    assert len(parts[0]) == 5 * rate
    assert (np.concatenate(parts) == whole).all()


def test_a_spectrogram_shows_a_tone_in_its_band(work, tmp_path):
    rate = work.SAMPLE_RATE
    source, out = tmp_path / "tone.flac", tmp_path / "out"
    time = np.arange(int(SECONDS * rate)) / rate
    soundfile.write(source, 0.5 * np.sin(2 * np.pi * 2000 * time), rate)
    rows = work.make_work("spectrograms")(source, out)
    assert len(rows) == math.ceil(SECONDS / work.CLIP_SECONDS)
    for row in rows:
        image = np.load(out / row["output"])
        assert image.dtype == np.float32
        assert image.shape == (work.MELS, row["frames"])
        bins = np.fft.rfftfreq(work.N_FFT, 1 / rate)
        loudest = work.mel_filters(rate)[image.mean(axis=1).argmax()]
        assert abs(bins[loudest.argmax()] - 2000) < 150


def test_the_bands_reach_from_the_lowest_to_the_highest_frequency(work):
    bank = work.mel_filters(work.SAMPLE_RATE)
    assert bank.shape == (work.MELS, work.N_FFT // 2 + 1)
    highest = bank.shape[1] - 1
    assert bank[0].argmax() <= 2
    assert 0.95 * highest < bank[-1].argmax() < highest


@pytest.mark.parametrize("kind", ["words", "clips", "spectrograms"])
def test_batchmill_and_its_peers_produce_the_same_rows(work, tmp_path, kind):
    from batchmill.testing import check_step
    from benchmarks.peers import steps

    (source,) = work.make_inputs(kind, 1, tmp_path / "in", seconds=SECONDS)
    ours = check_step(getattr(steps, kind), [source])
    others = work.make_work(kind)(source, tmp_path / "out")
    columns = work.COLUMNS[kind]
    assert [[row[name] for name in columns] for row in ours] == [
        [row[name] for name in columns] for row in others
    ]


def test_the_bare_loop_leaves_the_expected_files_and_a_changed_byte_is_detected(work, tmp_path):
    import subprocess

    from benchmarks.peers.results import expected_counts, look_at

    work.make_inputs("clips", 3, tmp_path / "in", seconds=SECONDS)
    command = [sys.executable, "-m", "benchmarks.peers.dataloader", "clips"]
    subprocess.run([*command, tmp_path / "in", tmp_path / "out"], check=True, cwd=ROOT)
    left = look_at(tmp_path / "out", "clips")
    assert (left.rows, left.files) == expected_counts("clips", 3, SECONDS) == (9, 9)
    changed = next((tmp_path / "out" / "files").glob("*/0001.wav"))
    changed.write_bytes(changed.read_bytes()[:-1] + b"!")
    assert look_at(tmp_path / "out", "clips").content != left.content


@pytest.fixture
def race(tmp_path):
    """A function that runs a Python script as a contender's command, and its arena."""
    from benchmarks.peers.contenders import Contender
    from benchmarks.peers.race import Arena

    arena = Arena(tmp_path, 600, tmp_path / "logs")

    class Scripted(Contender):
        def command(self, kind, inputs, out):
            return [sys.executable, "-c", self.title, str(out)]

    def run(script, expected=None):
        contender = Scripted(name="scripted", title=script, package="none")
        return arena.run(contender, "words", tmp_path, expected)

    return run, arena


LEAVE = """
import pathlib, sys
import pyarrow as pa, pyarrow.parquet as pq
out = pathlib.Path(sys.argv[1])
out.mkdir()
pq.write_table(pa.table({"word": ["a"], "characters": [1], "first": ["a"], "last": ["a"]}),
               out / "metadata.parquet")
print("some words\\n" + '{"seconds": 0.25}')
"""


def test_a_run_returns_what_its_script_left_and_the_seconds_that_it_printed(race):
    run, arena = race
    done = run(LEAVE)
    assert (done.loop, done.left.rows, done.left.files) == (0.25, 1, 0)
    assert done.seconds > 0
    assert not (arena.folder / "out").exists()
    assert run(LEAVE, done.left).left == done.left


def test_a_failed_contender_raises_the_reason_and_its_output_is_kept(race):
    from benchmarks.peers.race import RaceError

    run, arena = race
    left = run(LEAVE).left
    with pytest.raises(RaceError, match="it left 1 rows"):
        run(LEAVE.replace('"word": ["a"]', '"word": ["b"]'), left)
    with pytest.raises(RaceError, match="table cannot be read"):
        run("print('nothing')")
    with pytest.raises(RaceError, match="it ended with 3: no such thing"):
        run("import sys; print('no such thing', file=sys.stderr); sys.exit(3)")
    assert (arena.logs / "scripted-words.stderr").read_text() == "no such thing\n"
    assert not (arena.folder / "out").exists()


def test_a_contender_that_takes_too_long_is_killed(race):
    from benchmarks.peers.race import RaceError

    run, arena = race
    arena.limit_seconds = 0.2
    with pytest.raises(RaceError, match=r"more than 0\.2 s"):
        run("import time; time.sleep(600)")


def test_processes_that_a_command_leaves_behind_are_killed(race):
    import psutil

    run, arena = race
    arena.patience_seconds = 0
    # Prefect's server and Ray's processes have their own process groups, some their own sessions.
    start = (
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"open({str(arena.folder / 'pid')!r}, 'w').write(str(child.pid))\n"
    )
    run(start + LEAVE)
    child = int((arena.folder / "pid").read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie"


def test_a_table_is_one_file_or_a_folder_of_files(tmp_path):
    from benchmarks.peers.results import look_at

    frame = pd.DataFrame(
        {"word": ["b", "a"], "characters": [1, 1], "first": ["b", "a"], "last": ["b", "a"]}
    )
    for name in ("one", "parts"):
        (tmp_path / name).mkdir()
    frame.to_parquet(tmp_path / "one" / "metadata.parquet")
    (tmp_path / "parts" / "metadata.parquet").mkdir()
    for number in (1, 0):
        part = tmp_path / "parts" / "metadata.parquet" / f"{1 - number}.parquet"
        frame[number : number + 1].to_parquet(part)
    assert look_at(tmp_path / "one", "words") == look_at(tmp_path / "parts", "words")


def test_turns_alternate_and_each_tool_has_the_same_number(compare):
    names = [one.name for one in compare.turns(compare.CONTENDERS, full=False)]
    everyone = [one.name for one in compare.CONTENDERS]
    assert names == [*everyone, *everyone[::-1], *everyone]
    assert len([*compare.turns(compare.CONTENDERS, full=True)]) == 5 * len(everyone)


def test_no_ratio_is_given_if_the_bare_loop_varies(page):
    unsteady = figures()
    unsteady["kinds"]["clips"]["contenders"]["dataloader"]["runs"][0]["loop"] = 1.5
    everyone = page.results_of(unsteady, "clips")
    ours = next(one for one in everyone if one.name == "batchmill")
    assert page.of_bare(everyone, ours) is None
    assert "has 85 %" not in "\n".join(page._tools(unsteady)).partition("### Words")[0]


def test_every_peer_has_its_versions_pinned(compare):
    from benchmarks.peers.environments import requirements_of

    own = [one for one in compare.CONTENDERS if one.own_environment]
    assert len(own) == 5
    for one in own:
        assert one.version
        lines = requirements_of(one.name).read_text().splitlines()
        assert all("==" in line for line in lines if not line.startswith("#"))


def figures():
    """Figures of two kinds of work. One contender fails at the second, one is not installed."""
    runs: dict[str, Any] = {
        "dataloader": [(4.0, 2.0), (5.0, 2.2), (9.0, 2.3)],
        "batchmill": [(20.0, 2.5), (24.0, 2.75), (22.0, 2.6)],
        "fast": [(2.0, None)],
        "slow": [(44.0, 40.0)],
    }
    measured = {
        name: {"inputs": 12, "runs": [{"seconds": a, "loop": b} for a, b in pairs]}
        for name, pairs in runs.items()
    }
    return {
        "made": "2026-11-22", "command": "python -m benchmarks.compare", "workers": 2,
        "recording_seconds": 300.0,
        "machine": {"processor": "a CPU", "cores": 2, "memory_gib": 8, "system": "Linux 6",
                    "python": "3.11.7", "load": 0.1},
        "titles": {name: f"the {name}" for name in [*runs, "absent"]},
        "versions": dict.fromkeys([*runs, "absent"], "1.0"),
        "troubles": {"absent": "it cannot be installed: a | b"},
        "kinds": {
            "clips": {"inputs": 12, "rows": 720, "files": 720, "contenders": measured},
            "words": {
                "inputs": 12, "rows": 12, "files": 0,
                "contenders": measured | {"slow": {"inputs": 3, "runs": measured["fast"]["runs"]},
                                          "fast": {"inputs": 12, "runs": [], "trouble": "lost"}},
            },
        },
    }  # fmt: skip


def test_medians_and_speeds_relative_to_the_bare_loop(page):
    results = {one.name: one for one in page.results_of(figures(), "clips")}
    assert results["dataloader"].seconds == 5.0
    assert results["dataloader"].loop == 2.2
    assert results["batchmill"].seconds == 22.0
    everyone = list(results.values())
    assert page.of_bare(everyone, results["batchmill"]) == pytest.approx(2.2 / 2.6)
    assert page.of_bare(everyone, results["fast"]) is None
    assert [one.name for one in everyone][:2] == ["fast", "dataloader"]
    fewer = page.results_of(figures(), "words")
    assert page.of_bare(fewer, next(one for one in fewer if one.name == "slow")) is None


def test_the_page_names_faster_slower_and_failed_tools(page):
    text = page.render(figures(), SECTIONS)
    assert "| **the batchmill** | 1.0 | 3 | 22 (20 to 24) | 0.545 | 2.6 | 0.85 |" in text
    assert "Faster than batchmill (by the factor in brackets): the fast (11.0 times), " in text
    assert "with `python -m benchmarks.compare`" in text
    assert "Slower than batchmill: the slow (2.0 times)." in text
    assert "| the absent | 1.0 | | it cannot be installed: a \\| b | | | |" in text
    assert "| the slow (3 files) | 1.0 |" in text
    assert text.count("files) |") == 1
    assert "| the fast | 1.0 | | lost | | | |" in text
    assert "The loop of batchmill has 85 % of the bare DataLoader's speed." in text


SECTIONS = {
    "made": "2026-11-27", "commit": "0a56a6a", "machine": figures()["machine"],
    "sections": [
        {"title": "Start-up", "text": "Four words.", "command": "startup --rounds 1",
         "tables": "| a |\n|---|\n| 1 |"},
        {"title": "Models", "text": "As above.", "command": "gpu", "trouble": "finds no GPU"},
    ],
}  # fmt: skip


def test_the_page_has_each_measured_table_with_its_command(page):
    text = page.render(figures(), SECTIONS)
    assert "with the commit `0a56a6a` on a CPU, 2 cores" in text
    assert (
        "## Start-up\n\nFour words.\n\n| a |\n|---|\n| 1 |\n\n"
        "Command: `python -m benchmarks.startup --rounds 1`." in text
    )
    assert "Not measured on this machine: finds no GPU" in text


def test_each_section_names_a_benchmark_that_exists():
    from benchmarks.peers.environments import ROOT
    from benchmarks.sections import ALL

    for section in ALL:
        assert (ROOT / "benchmarks" / f"{section.command.split()[0]}.py").is_file()


def test_a_benchmark_that_fails_gives_its_reason(monkeypatch):
    from benchmarks import sections

    found = sections.measure(sections.Section("Models on a GPU", "", "gpu --device nosuch"))
    assert "tables" not in found
    assert "nosuch" in found["trouble"]
    assert sections.measure(sections.Section("", "", "machine"))["trouble"] == "printed no table"


def test_only_the_generated_part_of_the_page_is_replaced(page):
    text = page.PAGE.read_text()
    once = page.put_into(text, "new words")
    assert once.count("new words") == 1
    assert (
        page.put_into(once, page.render(figures(), SECTIONS)).split(page.BEGIN)[0]
        == text.split(page.BEGIN)[0]
    )
    assert once.partition(page.END)[2] == text.partition(page.END)[2]
    with pytest.raises(ValueError, match="must have the lines"):
        page.put_into("a page without comments", "new words")


def test_the_picture_has_every_measured_contender(page, tmp_path):
    page.draw(figures(), tmp_path / "one.svg")
    page.draw(figures(), tmp_path / "two.svg")
    drawn = (tmp_path / "one.svg").read_text()
    assert "the batchmill" in drawn
    assert "the absent" not in drawn
    assert drawn == (tmp_path / "two.svg").read_text()


def test_all_contenders_of_the_exports_write_and_read_all_samples(tmp_path, monkeypatch):
    pytest.importorskip("webdataset")
    import benchmarks.export as exports

    monkeypatch.setattr(exports, "SHARD_BYTES", 40_000)  # Two workers read several shards.
    exports.make_datasets(tmp_path, samples=200, size=500)
    for to, write in (
        ("webdataset", exports.write_webdataset),
        ("huggingface", exports.write_huggingface),
    ):
        read = getattr(exports, f"read_{to}")
        for source in ("loose", "packed"):
            exports.export(tmp_path, tmp_path / to / source, source=source, to=to, workers=1)
            assert read(tmp_path, f"{to}/{source}") == 200
        write(tmp_path, tmp_path / f"library-{to}")
        assert read(tmp_path, f"library-{to}") == 200
    assert [exports.read_dataset(tmp_path, source) for source in ("loose", "packed")] == [200, 200]


@pytest.fixture
def inference():
    import benchmarks.inference

    return benchmarks.inference


@pytest.mark.parametrize("kind", ["jpg", "npy"])
def test_the_bare_loop_of_a_model_writes_a_row_per_picture(inference, tmp_path, kind):
    paths = inference.make_inputs(tmp_path / "in", kind, pixels=32, count=70)
    inference.save_weights(tmp_path / "weights.pt", width=4)
    work = inference.Work(
        paths=paths, weights=tmp_path / "weights.pt", device="cpu", batch_size=16, workers=1
    )
    ends = inference.run_bare(work, tmp_path / "table.parquet")
    table = pd.read_parquet(tmp_path / "table.parquet")
    assert table["input"].tolist() == [path.name for path in paths]
    assert len(ends) == 70
    # The pictures repeat after 64.
    assert table["predicted"][:6].tolist() == table["predicted"][64:].tolist()
    assert table["probability"][0] != table["probability"][1]


def test_the_first_tenth_of_the_inputs_is_not_counted(inference):
    ends = [100.0, *(200.0 + number for number in range(20))]
    assert inference.counted_time(ends) == (201, 219)
    assert inference.rate_of(ends) == 1


def test_only_samples_in_the_counted_time_are_part_of_the_use_of_a_gpu(inference):
    gpu = inference.GpuUse("cpu")
    with gpu:
        assert gpu.between(0, 10) is None
    gpu._samples += [(1.0, 0.0), (2.0, 50.0), (3.0, 100.0), (4.0, 0.0)]
    assert gpu.between(1.5, 3.5) == 75
