"""The steps and queries of docs/recipes over small files."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from harness.jobs import run_job
from PIL import Image

import batchmill
from batchmill.core.options.failure_policy import FailurePolicy

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "recipes"
pytestmark = pytest.mark.slow


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Return a function that copies a recipe, makes its files, and enters its folder."""

    def copy(name, files=None):
        folder = shutil.copytree(ROOT / "examples" / "recipes" / name, tmp_path / name)
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(folder)
        if files:
            subprocess.run([sys.executable, "make.py", files], check=True)
        return folder

    return copy


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)


def outcomes(failures):
    return dict(zip(failures["input"], failures["outcome"], strict=True))


def rows_of(page):
    """Return the rows of the first table of a page."""
    table = re.search(r"^\|.*?\n\n", (PAGES / page).read_text(), re.MULTILINE | re.DOTALL)[0]
    header, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()
    ]
    return header, rows


def as_text(table, columns):
    return [
        ["" if pd.isna(value) else f"{value:g}" if isinstance(value, float) else str(value)
         for value in row]
        for row in table[columns].itertuples(index=False)
    ]  # fmt: skip


def test_pdfs(recipe, monkeypatch):
    """Each bad PDF has its outcome, and later runs execute only what was repaired or released."""
    monkeypatch.delenv("PDF_PASSWORDS", raising=False)
    recipe("pdfs", files="scans")
    job = ("scans", "pdf_pages:pages", "out")
    policy = FailurePolicy(timeout=5, memory_limit="50M")
    assert run_job(*job, policy=policy).executed == 8
    failures = batchmill.failures("out")
    assert outcomes(failures) == {
        "half.pdf": "failed",
        "huge.pdf": "oom",
        "locked.pdf": "failed",
        "not-found.pdf": "failed",
        "slow.pdf": "timeout",
    }
    errors = dict(zip(failures["input"], failures["error"], strict=True))
    assert errors["half.pdf"] == errors["not-found.pdf"] == "PdfStreamError"
    header, rows = rows_of("pdfs.md")
    assert as_text(batchmill.metadata("out"), header) == rows

    assert run_job(*job, policy=policy).executed == 0
    shutil.copy("scans/ferry.pdf", "scans/half.pdf")
    assert run_job(*job, policy=policy).executed == 1
    monkeypatch.setenv("PDF_PASSWORDS", "wrong open-sesame")
    batchmill.retry("out", "locked.pdf")
    assert run_job(*job, policy=policy).executed == 1
    table = batchmill.metadata("out")
    ferry = table.loc[table["input"] == "ferry.pdf", "text"].tolist()
    for name in ("half.pdf", "locked.pdf"):
        assert table.loc[table["input"] == name, "text"].tolist() == ferry


def test_pictures(recipe):
    """The texts of the page are found, and a cut-out is the part of its picture."""
    folder = recipe("pictures", files="photos")
    job = ("photos", "read_text:texts", "out")
    assert run_job(*job).executed == 6
    assert outcomes(batchmill.failures("out")) == {"half.jpg": "failed", "not-found.jpg": "failed"}
    table = batchmill.metadata("out")
    header, rows = rows_of("pictures.md")
    exact = [name for name in header if name in ("input", "text")]
    places = [header.index(name) for name in exact]
    assert as_text(table, exact) == [[row[place] for place in places] for row in rows]
    for row in table.itertuples():
        with Image.open(folder / "out" / row.output) as cut_out:
            assert cut_out.size == (row.right - row.left, row.bottom - row.top)

    shutil.copy("photos/ticket.png", "photos/half.jpg")
    assert run_job(*job).executed == 1
    assert (batchmill.metadata("out")["input"] == "half.jpg").sum() == 3


def test_the_model_for_batches_names_the_background_of_each_cut_out(recipe):
    recipe("pictures", files="photos")
    os.remove("photos/half.jpg")
    params = {"model": "colours:Colours", "load": "colours:load", "device": "cpu"}
    run_job("photos", "batchmill.steps.predict:Predict", "out", **params)
    table = batchmill.metadata("out").set_index("input")["background"]
    assert table.to_dict() == {
        "label.webp": "green",
        "sign.jpg": "yellow",
        "sky.jpg": "blue",
        "ticket.png": "white",
    }
    assert outcomes(batchmill.failures("out")) == {"not-found.jpg": "failed"}


def test_embeddings(recipe, capsys):
    """The index has the vectors of the table after new, changed, failed and deleted files."""
    recipe("embeddings")
    import index

    shutil.copytree(ROOT / "examples" / "summaries" / "documents", "texts")
    job = ("texts", "passages:embed", "passage-vectors")

    def updated():
        index.update("passage-vectors", "i.usearch")
        return [int(number) for number in re.findall(r"\d+", capsys.readouterr().out)]

    def found(question):
        (score, name, text), *_ = index.search("passage-vectors", "i.usearch", question)
        return round(score, 2), name, text

    assert run_job(*job).executed == 4
    assert updated() == [8, 0, 8]
    answers = [block.split("\n")[1] for block in blocks("embeddings.md", "text")]
    score, name, text = found("when does the boat leave?")
    assert answers[0].startswith(f"{score:.2f}  {name}: {text[:60]}")
    (script,) = (block for block in blocks("embeddings.md", "python") if "import duckdb" in block)
    exec(script, {})
    assert "The first ferry leaves" in capsys.readouterr().out

    Path("texts/melville.txt").write_text("Call me Ishmael.\n")
    os.remove("texts/kiln.txt")
    assert run_job(*job).executed == 1
    assert updated() == [1, 2, 7]
    assert updated() == [0, 0, 7]
    assert found("What is your name?")[1:] == ("melville.txt", "Call me Ishmael.")

    # The same text again has the same vector. A changed one replaces the old one.
    Path("texts/again.txt").write_text("Call me Ishmael.\n")
    Path("texts/garden.txt").write_text("A garden in the cellar\n\nMushrooms need no sun.\n")
    assert run_job(*job).executed == 2
    assert updated() == [2, 2, 7]
    assert found("Which plants grow in the dark?")[1] == "garden.txt"
    # A file that fails keeps its last vectors.
    Path("texts/ferry.txt").write_bytes(b"\xff")
    assert run_job(*job).executed == 1
    assert updated() == [0, 0, 7]
    run_job(*job, prune_failed=True)
    assert updated() == [0, 2, 5]


def test_the_pages_show_the_code_of_the_recipes():
    folder = ROOT / "examples" / "recipes"
    for page, file, start in (
        ("pdfs.md", "pdfs/pdf_pages.py", "def pages"),
        ("pictures.md", "pictures/read_text.py", "@cache\ndef reader"),
        ("embeddings.md", "embeddings/index.py", "def update"),
    ):
        (shown,) = (block for block in blocks(page, "python") if block.startswith(start))
        assert shown in (folder / file).read_text(), page


def test_queries_of_a_bucket(bucket, words, monkeypatch):
    """DuckDB and Polars read the table of a dataset in S3."""
    run_job(words / "manifest.csv", "batchmill.steps.words:split", f"{bucket}/clips")
    (script,) = (block for block in blocks("query.md", "python") if "s3://" in block)
    script = script.replace("s3://datasets", bucket)
    environment = os.environ | {"AWS_ALLOW_HTTP": "true", "POLARS_FMT_TABLE_FORMATTING": "NOTHING"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    counts = [5, 8, 12, 6]
    expected = [[f"{letter}.txt", str(count)] for letter, count in zip("abcd", counts, strict=True)]
    found = [list(row) for row in re.findall(r"(\w\.txt)\W+(\d+)", done.stdout)]
    assert found == expected * 2  # DuckDB, then Polars.


def test_queries_of_a_page(tmp_path, monkeypatch):
    """The page's queries of datasets on a disk."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples" / "recordings", "examples/recordings")
    options = {"pattern": "*.flac,*.sh,*.md"}
    audio = "batchmill.steps.audio:split"
    run_job("examples/recordings", audio, "query-clips", seconds=2, options=options)
    run_job("query-clips", "batchmill.steps.spectrogram:log_mel", "query-features")
    script = "\n".join(blocks("query.md", "python run"))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert blocks("query.md", "text")[0] in done.stdout
    table = batchmill.metadata("query-clips")
    assert "LibsndfileError" in done.stdout
    loud = int((table["peak"] > 0.85).sum())
    assert f"shape: ({loud}, " in done.stdout
    assert "0 rows" in done.stdout  # Nothing has changed since version 1.
