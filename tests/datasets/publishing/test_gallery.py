"""Test that the report shows samples of the output files, and that no file can harm it."""

import base64
import io
import os
import sys
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness.jobs import run_job
from PIL import Image

from batchmill.core.ledger.open import open_ledger
from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.storage import LocalStore
from batchmill.datasets.publishing.report import write_report
from batchmill.datasets.publishing.report.facts import gather
from batchmill.datasets.publishing.report.gallery import (
    PAGE,
    Previewer,
    chosen_rows,
    gather_gallery,
)

SAMPLES = PAGE.samples
# Copies the input, and names each copy like it. Fails if the name begins with "bad".
STEP = """
import shutil

def step(source, out):
    if source.name.startswith("bad"):
        raise ValueError("<b>wrong</b>")
    shutil.copy(source, out)
    return {"output": source.name}

def rows_only(source, out):
    return {"length": len(source.name)}
"""


def png(side=400, mode="RGB", colour="red"):
    file = io.BytesIO()
    Image.new(mode, (side, side), colour).save(file, "PNG")
    return file.getvalue()


def parquet(rows):
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file)
    return file.getvalue()


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Return a function that copies files by a run, and returns the gallery and the page."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "copying.py").write_text(STEP)

    def made(contents, step="step", **options):
        (tmp_path / "in").mkdir(exist_ok=True)
        for name, content in contents.items():
            (tmp_path / "in" / name).write_bytes(content)
        run_job("in", f"copying:{step}", "out", policy=FailurePolicy(retries=0), options=options)
        return again()

    return made


def again():
    ledger = open_ledger("out")
    write_report(ledger, 1, "out")
    page = Path("out/report.html").read_text()
    facts = gather(ledger, 1, "out")
    return gather_gallery(ledger.store, facts.failures["input"].to_pylist(), facts.spec.root), page


def preview_of(name, content):
    return Previewer(PAGE.embedded_bytes).preview(name, pa.BufferReader(content))


def test_a_picture_has_an_embedded_thumbnail_and_a_link(made):
    gallery, page = made({"a b.png": png()})
    (sample,) = gallery.samples
    assert sample.input == "a b.png"
    assert sample.link.startswith("./files/")
    assert sample.link.endswith("/a%20b.png")
    assert sample.preview.picture.startswith("data:image/jpeg;base64,")
    assert f'src="{sample.preview.picture}"' in page
    assert f'href="{sample.link}"' in page


def test_a_sound_has_a_player(made):
    gallery, page = made({"a.wav": b"RIFF"})
    assert f'<audio controls preload="none" src="{gallery.samples[0].link}">' in page


def test_texts_are_cut_and_escaped(made):
    long = "<script>alert(1)</script> \N{SNOWMAN}" * 1000
    gallery, page = made({"a.txt": long.encode(), "b.json": b'{"a": 1}'})
    texts = [sample.preview.text for sample in gallery.samples]
    assert len(texts[0]) < 700
    assert texts[1] == '{"a": 1}'
    assert "&lt;script&gt;alert(1)" in page
    assert "<script" not in page


@pytest.mark.parametrize("name", ["a.svg", "a.html"])
def test_files_with_scripts_are_shown_as_text_without_a_link(made, name):
    gallery, page = made({name: b"<svg onload='alert(1)'></svg>"})
    assert gallery.samples[0].preview.kind == "text"
    assert "&lt;svg onload=" in page
    assert "<svg onload" not in page
    assert gallery.samples[0].link not in page


def test_a_table_has_its_first_rows(made):
    rows = [{"name": f"<i>{number}", "value": number} for number in range(9)]
    gallery, page = made({"a.parquet": parquet(rows)})
    assert gallery.samples[0].preview.rows[:2] == [["name", "value"], ["<i>0", "0"]]
    assert len(gallery.samples[0].preview.rows) == 6
    assert "&lt;i&gt;0" in page


def test_samples_are_chosen_evenly(made):
    names = [f"{number:03d}.txt" for number in range(100)]
    gallery, _ = made(dict.fromkeys(names, b"text"))
    chosen = [names.index(sample.input) for sample in gallery.samples]
    assert len(chosen) == SAMPLES
    assert (chosen[0], chosen[-1]) == (0, 99)
    assert {later - earlier for earlier, later in pairwise(chosen)} == {4, 5}


def test_samples_are_chosen_from_all_row_groups_and_skip_rows_without_file(tmp_path):
    names = [str(number) for number in range(300)]
    outputs = [None if number % 3 else f"files/{number}" for number in range(300)]
    table = pa.table({"input": names, "value": names, "output": outputs})
    pq.write_table(table, tmp_path / "metadata.parquet", row_group_size=70)
    chosen = list(chosen_rows(LocalStore(tmp_path), SAMPLES))
    assert len(chosen) == SAMPLES
    assert [chosen[0], chosen[-1]] == [("0", "files/0", ""), ("297", "files/297", "")]


def test_a_file_in_a_pack_has_a_thumbnail_and_no_link(made):
    gallery, page = made({"a.png": png(), "b.wav": b"sound", "c.txt": b"some text"}, pack="1MB")
    assert [sample.link for sample in gallery.samples] == ["", "", ""]
    assert gallery.samples[0].preview.picture in page
    assert "some text" in page
    assert page.count("This file is in a pack.") == 1
    assert 'href="./files' not in page


def test_a_failed_input_shows_its_thumbnail_beside_the_reason(made):
    gallery, page = made({"bad.png": png(), "bad.txt": b"text"})
    assert list(gallery.failed) == ["bad.png"]
    (picture,) = gallery.failed.values()
    before, _, after = page.partition(f'src="{picture}"')
    assert "ValueError: &lt;b&gt;wrong&lt;" in after.partition("</summary>")[0]
    assert before.rpartition("<summary>")[2].count("<img") == 1


@pytest.mark.parametrize(
    "content", [b"", b"no picture", png()[:200], png()[:-30], b"\x89PNG\r\n\x1a\n" + b"\xff" * 99]
)
def test_a_damaged_picture_breaks_nothing(made, content):
    gallery, page = made({"a.png": content, "bad.png": content, "b.png": png()})
    assert len(gallery.samples) == 2
    assert gallery.samples[1].preview.picture
    assert "</html>" in page


def test_without_pillow_pictures_are_linked(made, monkeypatch):
    contents = {"a.png": png(), "bad.png": png()}
    monkeypatch.setitem(sys.modules, "PIL", None)
    gallery, page = made(contents)
    assert gallery.samples[0].preview.picture == ""
    assert f'src="{gallery.samples[0].link}"' in " ".join(page.split())
    assert gallery.failed == {}


def test_a_dataset_without_files_has_no_gallery(made):
    gallery, page = made({"a.txt": b"text"}, step="rows_only")
    assert gallery.samples == []
    assert "<figure>" not in page


def test_a_deleted_file_and_a_link_have_no_sample(made, tmp_path):
    gallery, _ = made({"a.txt": b"text", "b.txt": b"text", "c.txt": b"text"})
    first, second, _ = (tmp_path / "out" / sample.output for sample in gallery.samples)
    first.unlink()
    second.unlink()
    second.symlink_to("/etc/hostname")
    gallery, _ = again()
    assert [sample.input for sample in gallery.samples] == ["c.txt"]


def test_a_failed_input_that_is_a_pipe_is_not_opened(made, tmp_path):
    made({"bad.png": png()})
    (tmp_path / "in" / "bad.png").unlink()
    os.mkfifo(tmp_path / "in" / "bad.png")
    gallery, _ = again()
    assert gallery.failed == {}


def test_a_damaged_table_of_a_dataset_leaves_only_the_gallery_out(made, tmp_path):
    made({"a.txt": b"text"})
    (tmp_path / "out" / "metadata.parquet").write_bytes(b"damaged")
    gallery, page = again()
    assert gallery.samples == []
    assert "All 1 inputs are ok" in " ".join(page.split())


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("a.bin", b"\xff\xfe\x00", "other"),
        ("a.npy", b"\x93NUMPY", "other"),
        ("a", b"text", "text"),
        ("empty.txt", b"", "other"),
        ("a.parquet", b"PAR1 damaged", "table"),
    ],
)
def test_kind_of_a_file(name, content, kind):
    assert preview_of(name, content).kind == kind


def test_a_character_at_the_limit_of_a_text_is_not_broken():
    preview = preview_of("a.txt", b"a" + "\N{SNOWMAN}".encode() * 5000)
    assert preview.text.startswith("a\N{SNOWMAN}")


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "I;16"])
def test_pictures_of_all_modes_are_shown_or_linked(mode):
    has_thumbnail = bool(preview_of("a.png", png(mode=mode, colour=None)).picture)
    assert has_thumbnail == (mode != "I;16")


def test_a_transparent_picture_has_a_white_background():
    picture = preview_of("a.png", png(mode="RGBA", colour=(0, 0, 0, 0))).picture
    data = base64.b64decode(picture.removeprefix("data:image/jpeg;base64,"))
    with Image.open(io.BytesIO(data)) as small:
        assert (small.size, small.getpixel((0, 0))) == ((240, 240), (255, 255, 255))


def test_a_picture_with_too_many_pixels_is_not_decoded():
    assert preview_of("a.png", png(side=5500, mode="1", colour=0)).picture == ""


def test_files_above_the_limits_are_not_read(monkeypatch):
    monkeypatch.setattr("batchmill.datasets.publishing.report.gallery._ALL_BYTES", 3000)
    previewer = Previewer(PAGE.embedded_bytes)
    content = png()
    assert 1000 < len(content) < 2000
    found = [previewer.preview("a.png", pa.BufferReader(content)).picture for _ in range(3)]
    assert [bool(picture) for picture in found] == [True, True, False]


def test_pictures_above_the_limit_of_the_page_are_linked():
    previewer = Previewer(1000)
    found = [previewer.preview("a.png", pa.BufferReader(png())).picture for _ in range(3)]
    assert bool(found[0])
    assert not found[2]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([10**7], pa.int32()).cast(pa.date32()),
        pa.array([10**15], pa.timestamp("ms")),
        pa.array([0], pa.timestamp("ms", tz="Mars/Olympus")),
    ],
    ids=["date", "time", "zone"],
)
def test_a_table_with_values_that_python_lacks_harms_no_report(column):
    file = io.BytesIO()
    pq.write_table(pa.table({"a": column}), file)
    assert not preview_of("a.parquet", file.getvalue()).rows


def test_a_report_has_no_picture_of_an_input_that_may_not_be_read(made, monkeypatch):
    made({"bad.png": png(), "good.png": png()}, max_failures=1)
    assert again()[0].failed
    monkeypatch.setenv("BATCHMILL_ALLOWED_INPUTS", "/nothing")
    assert not again()[0].failed
