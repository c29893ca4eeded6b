"""The result of a run: its text, and what a notebook shows of it."""

import io
import os
import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest
from harness.jobs import run_job
from PIL import Image

from batchmill import RunResult
from batchmill.core.options.failure_policy import FailurePolicy

# Copies the input, and names each copy like it. Fails if the name begins with "bad".
STEP = """
import shutil

def step(source, out):
    if source.name.startswith("bad"):
        raise ValueError("<script>alert(1)</script> & more")
    shutil.copy(source, out)
    return {"output": source.name}
"""


class Page(HTMLParser):
    """The tags of a piece of HTML, with their attributes."""

    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.open = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def values(self, tag, name):
        return [attributes[name] for found, attributes in self.tags if found == tag]


def noise(side=240):
    """A picture whose thumbnail is as large as possible."""
    pixels = np.random.default_rng(1).integers(0, 256, (side, side, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def result_of(tmp_path, monkeypatch):
    """Return a function that copies files by a run, and returns its result."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "copies.py").write_text(STEP)
    (tmp_path / "in").mkdir()

    def result_of(contents):
        for name, content in contents.items():
            (tmp_path / "in" / name).write_bytes(content)
        summary = run_job("in", "copies:step", "out", policy=FailurePolicy(retries=0))
        return RunResult(str(tmp_path / "out"), summary)

    return result_of


def test_the_text_is_short(result_of):
    result = result_of({f"{name}.txt": b"x" for name in ("a", "bad1", "bad2", "bad3", "bad4")})
    assert repr(result) == "\n".join(
        [
            "5 inputs: 1 ok, 4 failed, 5 executed",
            *(
                f"  bad{number}.txt: failed: ValueError: <script>alert(1)</script> & more"
                for number in (1, 2, 3)
            ),
            "  ... and 1 more in the table `failures`",
            f"Dataset: {result.dataset}",
        ]
    )


def test_a_notebook_shows_counts_and_escaped_failures(result_of):
    shown = result_of({"a.txt": b"x", "bad<i>.txt": b"x"})._repr_html_()
    page = Page(shown)
    assert page.open == []
    assert not {tag for tag, _ in page.tags} & {"script", "style", "link", "i", "iframe"}
    assert "2 inputs: 1 ok, 1 failed" in shown
    assert page.values("span", "title") == ["1 ok", "1 failed"]
    assert "<td" in shown
    assert "bad&lt;i&gt;.txt" in shown
    assert "ValueError: &lt;script&gt;alert(1)&lt;/script&gt; &amp; more" in shown
    assert page.values("a", "href")[:3] == [
        "out/report.html",
        "out/metadata.csv",
        "out/failures.csv",
    ]


def test_pictures_are_embedded_and_sounds_can_be_played(result_of):
    page = Page(result_of({"a b.png": noise(), "c.wav": b"RIFF", "d.txt": b"x"})._repr_html_())
    (picture,) = page.values("img", "src")
    assert picture.startswith("data:image/jpeg;base64,")
    (sound,) = page.values("audio", "src")
    assert os.path.isfile(sound)
    named = {os.path.basename(href) for href in page.values("a", "href")}
    assert named == {"report.html", "metadata.csv", "a%20b.png", "c.wav"}


def test_a_failed_picture_is_beside_its_reason(result_of):
    page = Page(result_of({"a.txt": b"x", "bad.png": noise()})._repr_html_())
    assert [src[:22] for src in page.values("img", "src")] == ["data:image/jpeg;base64"]


def test_the_output_of_a_cell_stays_small_and_its_links_are_relative(result_of):
    picture = noise()
    named = {f"{'n' * 200}{number:02d}.png": picture for number in range(40)}
    shown = result_of(named | {f"bad{name}": picture for name in named})._repr_html_()
    assert 100_000 < len(shown.encode()) < 500_000
    assert all(href.startswith("out/") for href in Page(shown).values("a", "href"))


def test_texts_have_the_colours_of_the_notebooks_theme(result_of):
    shown = result_of({"a.txt": b"x", "bad.txt": b"x"})._repr_html_()
    coloured = [style for style in re.findall(r'style="([^"]*)"', shown) if "#" in style]
    # Only the bar has colours, and these are visible on white and on black.
    assert len(coloured) == 3
    assert all(re.search(r"background:\s*#", style) for style in coloured)
    assert "color:" not in shown


def test_without_its_dataset_a_result_is_shown_as_text(result_of):
    result = result_of({"a.txt": b"x"})
    shutil.rmtree(result.dataset)
    assert result._repr_html_() is None
