"""The report in a real browser: readable on narrow and wide screens, light, dark and printed."""

import pytest
from harness.browser import browser_in
from harness.jobs import run_job

from batchmill.core.ledger.open import open_ledger
from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.datasets.publishing.report import write_report

STEP = """
import wave

import pandas as pd
from PIL import Image

def step(source, out):
    text = source.read_text()
    if "bad" in text:
        raise ValueError("the histogram of this picture cannot be normalised " * 3 + str(source))
    (out / "copy.txt").write_text(text * 9)
    number = int(source.stem[-2:])
    if number % 5 == 1:
        Image.new("RGB", (300, 200), "teal").save(out / "picture.png")
        yield {"output": "picture.png", "length": number}
    if number % 5 == 2:
        # This mode has no thumbnail, so the page loads the file.
        Image.new("I;16", (30, 20)).save(out / "16-bit.png")
        yield {"output": "16-bit.png", "length": number}
    if number % 5 == 3:
        with wave.open(str(out / "sound.wav"), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(b"00" * 8000)
        yield {"output": "sound.wav", "length": number}
    if number % 5 == 4:
        table = pd.DataFrame({"a_long_name_of_a_column": range(9), "b": "x" * 99})
        table.to_parquet(out / "a.parquet")
        yield {"output": "a.parquet"}
    yield {"output": "copy.txt", "length": number}
"""
# Returns the words of tables and tiles that are on more than one line.
BROKEN_WORDS = """() => {
    const broken = [], range = document.createRange();
    for (const cell of document.querySelectorAll("th, td, .tile")) {
        const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
        for (let node = texts.nextNode(); node; node = texts.nextNode())
            for (const word of node.data.matchAll(/[\\p{L}\\p{N}_]+/gu)) {
                range.setStart(node, word.index);
                range.setEnd(node, word.index + word[0].length);
                const tops = new Set([...range.getClientRects()].map(box => box.top));
                if (tops.size > 1) broken.push(word[0]);
            }
    }
    return broken;
}"""
# Returns the texts of charts that are not completely in their picture.
CUT_LABELS = """() => [...document.querySelectorAll("svg text")].filter(text => {
    const inner = text.getBoundingClientRect();
    const outer = text.closest("svg").getBoundingClientRect();
    return inner.left < outer.left - 1 || inner.right > outer.right + 1
        || inner.top < outer.top - 1 || inner.bottom > outer.bottom + 1;
}).map(text => text.textContent)"""

SECONDS_OF_SOUND = """new Promise((done, fail) => {
    const sound = document.querySelector("audio");
    sound.onloadedmetadata = () => done(sound.duration);
    sound.onerror = () => fail(sound.error.message);
    sound.load();
})"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with browser_in(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def report(tmp_path, monkeypatch):
    """Return the URL of the report of a dataset with long names and failures."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "copying.py").write_text(STEP)
    folder = tmp_path / "in" / "a_long_folder_name_of_a_collection" / "with_another_long_folder"
    folder.mkdir(parents=True)
    for number in range(30):
        text = "bad" if number % 7 == 0 else "good"
        (folder / f"photo_of_the_collection_{number:05d}.txt").write_text(text)
    summary = run_job("in", "copying:step", "out", policy=FailurePolicy(retries=0))
    write_report(open_ledger("out"), summary.run, "out")
    return (tmp_path / "out" / "report.html").as_uri()


@pytest.mark.parametrize("width", [420, 800, 1400])
def test_report_is_readable_at_each_width(browser, report, width):
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto(report)
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(BROKEN_WORDS) == []
    assert page.locator("svg text").count() > 20
    assert page.evaluate(CUT_LABELS) == []
    page.close()


def test_report_is_dark_on_a_dark_screen_and_light_on_paper(browser, report):
    page = browser.new_page(color_scheme="dark")
    page.goto(report)
    assert brightness(page, "body", "color") > 150
    assert brightness(page, "svg text", "fill") > 120
    assert brightness(page, "body", "background-color") < 60
    page.emulate_media(media="print")
    assert brightness(page, "body", "color") < 60
    assert brightness(page, "body", "background-color") > 200
    page.close()


def test_pictures_and_sounds_of_the_dataset_are_loaded(browser, report):
    page = browser.new_page()
    problems = []
    page.on("console", lambda message: problems.append(message.text))
    page.goto(report)
    page.evaluate("document.querySelectorAll('img').forEach(one => one.loading = 'eager')")
    page.evaluate("Promise.all([...document.images].map(one => one.decode()))")
    sources = page.evaluate("[...document.images].map(one => [one.naturalWidth, one.src])")
    assert {source.partition(":")[0] for _, source in sources} == {"data", "file"}
    assert all(width for width, _ in sources)
    assert page.evaluate(SECONDS_OF_SOUND) == 1
    assert problems == []
    page.close()


def test_a_script_in_the_page_is_not_executed(browser, report, tmp_path):
    path = tmp_path / "out" / "report.html"
    text = path.read_text().replace("</h1>", "</h1><img src=x onerror='document.title = 1'>")
    path.write_text(text.replace("</h1>", "</h1><script>document.title = 2</script>"))
    page = browser.new_page()
    page.goto(report)
    assert page.title().startswith("out: 30 inputs")
    page.close()


def brightness(page, selector, name):
    """Return the mean of red, green and blue of an element's colour."""
    style = f"getComputedStyle(document.querySelector('{selector}'))"
    colour = page.evaluate(f"{style}.getPropertyValue('{name}')")
    return sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(","))) / 3
