"""The recipe for language models: retries, checked answers, answers that were cut off, costs."""

import re
import shutil

import pandas as pd
import pytest
from harness.jobs import job_of, run_job
from harness.live import ROOT, serving

import batchmill
from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.planning.prepare import prepare

pytestmark = pytest.mark.slow

STEP = "extract:Extract"
PARAMS = {"model": "stand-in"}


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Return a copy of the recipe. The step reads the prices there."""
    folder = shutil.copytree(ROOT / "examples" / "recipes" / "language_model", tmp_path / "recipe")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    return folder


@pytest.fixture
def server(recipe, monkeypatch):
    """Run the stand-in of the recipe, which refuses the first two requests."""
    from stand_in import Server

    with serving(Server(refuse=2)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        yield server


def run(recipe):
    """Run the step over the e-mails, and return the outcomes by input."""
    seen = []
    run_job(
        recipe / "emails", STEP, recipe / "out", seen=seen, num_workers=1, cores=1,
        policy=FailurePolicy(retries=3, timeout=60), **PARAMS,
    )  # fmt: skip
    return {one.input: one for one in seen}


def table(recipe):
    return pd.read_parquet(recipe / "out" / "metadata.parquet")


def test_refused_requests_are_repeated_and_a_wrong_answer_fails(recipe, server):
    (recipe / "emails" / "05.txt").write_text("Please send 0 pens for Nil Company.")
    outcomes = run(recipe)
    assert {name for name, one in outcomes.items() if one.kind != "ok"} == {"05.txt"}
    assert outcomes["05.txt"].reason.startswith("ValidationError: ")
    assert outcomes["05.txt"].attempts == 4
    rows = table(recipe)
    assert rows[["customer", "product", "quantity", "express"]].to_numpy().tolist() == [
        ["Lindgren School", "boxes of copy paper", 12, False],
        ["Okafor Printing", "toner cartridges", 3, True],
        ["Brandt and Sons", "moving boxes", 40, False],
        ["Harbour Library", "standing lamp", 1, False],
    ]
    assert (rows["sent"] > 10).all()
    assert (rows["received"] >= 9).all()
    dollars = (rows["sent"] * 0.15 + rows["received"] * 0.60) / 1e6
    assert rows["cost"].tolist() == pytest.approx(dollars.tolist())
    # Each attempt is one request, also the two that were refused.
    assert next(server.requests) - 1 == sum(one.attempts for one in outcomes.values()) <= 10


def test_answers_that_were_cut_off_are_requested_again(recipe, server, monkeypatch):
    monkeypatch.setenv("MAX_TOKENS", "10")
    run(recipe)
    rows = table(recipe)
    cut = rows[rows["finish_reason"] == "length"]
    assert 0 < len(cut) < len(rows) == 4
    assert cut["customer"].isna().all()
    assert rows[rows["finish_reason"] == "stop"]["customer"].notna().all()
    found = batchmill.retry(recipe / "out", where="finish_reason == 'length'")
    assert found == cut["input"].tolist()
    monkeypatch.setenv("MAX_TOKENS", "1000")
    assert {*run(recipe)} == {*found}
    assert table(recipe)["finish_reason"].eq("stop").all()


def test_a_new_price_executes_nothing(recipe, server):
    run(recipe)
    prices = recipe / "prices.json"
    prices.write_text(prices.read_text().replace("0.60", "0.80"))
    job = job_of(recipe / "emails", STEP, recipe / "out", params=PARAMS)
    assert prepare(job).plan.pending.num_rows == 0


def test_a_model_without_a_price_fails_before_a_request(recipe, server):
    (recipe / "prices.json").write_text("{}")
    assert {one.reason for one in run(recipe).values()} == {"KeyError: 'stand-in'"}
    assert next(server.requests) == 1


def test_the_page_shows_the_step():
    page = (ROOT / "docs" / "recipes" / "language-model.md").read_text()
    step = (ROOT / "examples" / "recipes" / "language_model" / "extract.py").read_text()
    shown = [
        block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class " in block
    ]
    assert len(shown) == 2
    assert [block for block in shown if block not in step] == []
