"""Test that the report shows the ledger's records, and escapes all names."""

import re
from html import unescape
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
from harness.jobs import run_job

from batchmill.core.ledger.open import open_ledger
from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.planning.batching import Cores
from batchmill.core.planning.job import make_job
from batchmill.core.planning.prepare import prepare
from batchmill.datasets.maintenance.verify import verify
from batchmill.datasets.publishing.report import write_report
from batchmill.datasets.publishing.report.facts import gather
from batchmill.datasets.publishing.report.page import message_text
from batchmill.datasets.publishing.report.run_charts import at_work, figures
from batchmill.datasets.publishing.report.svg import Axis, Chart, Series, as_data_url
from batchmill.runs.run import open_run

STEP = """
def step(source, out, language="", level=0):
    text = source.read_text()
    if "bad" in text:
        print("<i>about to fail</i>" * (len(text) // 9 + 1))
        raise ValueError(f"<b>{text}</b>")
    if "odd" in text:
        raise KeyError(text)
    (out / "copy").write_text(text)
    return {"output": "copy", "length": len(text), "word": text}
"""


class Page(HTMLParser):
    """The tags, the references and the text of a page."""

    def __init__(self, text):
        super().__init__()
        self._source = text
        self.tags, self.references, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.references += [value for name, value in attributes if name in ("src", "href")]

    def handle_data(self, data):
        self.text += data

    def part(self, tag):
        """Return the text of the first element with a tag."""
        return spaced(self._source.partition(f"<{tag}")[2].partition(f"</{tag}>")[0])

    @property
    def words(self):
        """The text of the page, with spaces between the cells of tables."""
        return spaced(self._source)


def spaced(source):
    """Return the text of HTML with single spaces, also instead of tags."""
    text = re.sub("(^[^<]*>)|(<[^>]*>)", " ", source.replace("<wbr>", ""))
    return " ".join(unescape(text).split())


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs the step over inputs and returns the facts and the page."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "copying.py").write_text(STEP)

    def run(contents, **params):
        (tmp_path / "in").mkdir(exist_ok=True)
        for name, content in contents.items():
            (tmp_path / "in" / name).write_text(content)
        policy = FailurePolicy(retries=0, stop_after_same=0)
        summary = run_job("in", "copying:step", "out", policy=policy, **params)
        facts, _ = write_report(open_ledger("out"), summary.run, "out")
        return facts, Page((tmp_path / "out" / "report.html").read_text())

    return run


def test_report_lists_failures_and_has_no_external_references(run):
    names = {f"{number}.txt": "good" for number in range(8)}
    facts, page = run(names | {"<script>.txt": "bad", "b.txt": "bad", "c.txt": "odd"})
    assert [(group.inputs, group.outcome, group.error) for group in facts.summary.groups] == [
        (2, "failed", "ValueError"),
        (1, "failed", "KeyError"),
    ]
    assert "3 of 11 inputs" in page.text
    assert "<script>.txt" in page.text
    assert "<b>bad</b>" in page.text
    assert "<i>about to fail</i>" in page.text
    assert 'raise ValueError(f"<b>{text}</b>")' in page.text
    assert not {"script", "link", "iframe", "img"} & set(page.tags)
    assert page.references == ["./", "failures.csv", "metadata.csv", "metadata.parquet"]
    assert page.tags.count("svg") == 5
    assert len(facts.slowest()) == 10
    assert facts.seconds > 0
    assert list(verify(open_ledger("out"), hash_files=True)) == []


def test_reasons_and_their_remedy_come_before_samples_and_columns(run):
    _, page = run({"a.txt": "good", "b.txt": "bad"})
    titles = ("Failures by cause", "sample of the output files", "Columns of the table")
    order = [page.words.index(title) for title in titles]
    assert order == sorted(order)
    assert "1 failed: error in the step" in page.words[: order[0]]
    remedy = page.words[order[0] : order[1]]
    assert "To continue: fix the step or the inputs" in remedy
    assert "batchmill retry out --group 1" in remedy


def test_head_names_the_dataset_its_step_and_its_version(run, tmp_path):
    facts, page = run({"a.txt": "good", "b.txt": "bad"}, language="<en>", level=3)
    assert page.part("h1") == "out"
    head = page.part("dl")
    assert f"folder {tmp_path}/out " in head
    assert "step copying:step params language=<en> level=3 run 1, report made 20" in head
    assert f"version {facts.version.number}, published 20" in head
    assert "1 row" in head
    assert page.part("title") == "out: 2 inputs: 1 ok, 1 failed"


def test_report_has_a_short_text_for_a_message(run, tmp_path):
    facts, _ = run({"a.txt": "good", "b.txt": "bad", "c.txt": "bad", "d.txt": "odd"}, level=3)
    assert message_text(facts).splitlines() == [
        "out: 4 inputs: 1 ok, 3 failed",
        "Run 1, copying:step level=3",
        "1 file, 4 bytes",
        f"{tmp_path}/out",
        "2 failed: ValueError: <b>bad</b>",
        "1 failed: KeyError: 'odd'",
    ]


def test_report_of_a_stopped_run_links_no_missing_table(run, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("good")
    stop_early()
    facts, _ = write_report(open_ledger("out"), 1, "out")
    assert facts.version is None
    assert Page((tmp_path / "out" / "report.html").read_text()).references == ["./"]


def test_report_describes_the_columns_of_the_table(run):
    _, page = run({"a.txt": "good", "b.txt": "good", "c.txt": "<i>"}, level=3)
    assert "input text 3 different 0 a.txt 1 , b.txt 1 , c.txt 1" in page.words
    assert "length whole number 3 to 4 0" in page.words
    assert "word text 2 different 0 good 2 , <i> 1" in page.words


def test_page_is_small_with_many_long_failures(run, tmp_path):
    _, page = run({f"{number}.txt": f"{number} bad" * 4000 for number in range(220)})
    assert (tmp_path / "out" / "report.html").stat().st_size < 5_000_000
    assert "the first 200 of 220" in " ".join(page.text.split())


def test_report_shows_the_last_run_that_executed_inputs(run):
    run({"a.txt": "good", "b.txt": "good"})
    facts, page = run({})
    assert (facts.summary.run, facts.executed_by, len(facts.executed)) == (2, 1, 2)
    assert [summary["run"] for summary in facts.runs] == [2, 1]
    assert "All 2 inputs are ok" in page.text
    assert "run 1, the last run" in page.text


def test_charts_are_of_the_last_run_that_executed_many_inputs(run):
    run({f"{number}.txt": "good" for number in range(40)})
    run({f"later {number}.txt": "good" for number in range(4)})
    facts, page = run({"last.txt": "good", "more.txt": "good"})
    assert (facts.summary.run, facts.executed_by, len(facts.executed)) == (3, 2, 4)
    assert "Performance (run 2, the last run that executed many inputs)" in page.words
    assert "4 executed in run 2" in page.words


def test_slowest_inputs_show_the_size_of_their_outputs(run):
    facts, page = run({"a.txt": "good" * 1000, "b.txt": "bad"})
    slowest = {record["input"]: record["written"] for record in facts.slowest()}
    assert slowest == {"a.txt": 4000, "b.txt": 0}
    assert "3.9 KiB 3.9 KiB" in page.words
    assert "Duration of inputs by the size of their outputs" in [
        label for label, _ in figures(facts)
    ]


def test_outputs_of_an_earlier_result_do_not_count_for_a_failed_run(run):
    run({"a.txt": "good"})
    facts, _ = run({"a.txt": "bad"})
    assert [(record["outcome"], record["written"]) for record in facts.slowest()] == [("failed", 0)]


def stop_early():
    """Start a run, and stop it before it executes an input."""
    job = make_job(manifest="in", step="copying:step", output="out")
    with open_run(prepare(job)) as run:
        run.divide(Cores(total=1, node=1))


def test_report_of_a_stopped_run_shows_pending_inputs(run, tmp_path):
    run({"a.txt": "good"})
    (tmp_path / "in" / "b.txt").write_text("new")
    stop_early()
    facts, _ = write_report(open_ledger("out"), 2, "out")
    assert facts.summary.pending == 1
    page = Page((tmp_path / "out" / "report.html").read_text())
    assert "1 of 2 inputs are pending" in " ".join(page.text.split())


def test_report_without_executed_inputs_has_no_charts(run, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("good")
    stop_early()
    facts, pictures = write_report(open_ledger("out"), 1, "out")
    assert (facts.begun, facts.seconds, facts.throughput) == (0.0, 0.0, 0.0)
    assert pictures == []
    assert "svg" not in Page((tmp_path / "out" / "report.html").read_text()).tags


def test_one_input_is_enough_for_charts(run):
    facts, page = run({"a.txt": "good"})
    assert page.tags.count("svg") == 5
    for _, svg in figures(facts):
        assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
        assert as_data_url(svg).startswith("data:image/svg+xml;base64,PHN2Zy")


def test_node_names_are_escaped_in_charts():
    axis = Axis(label="a < b", low=0, high=4)
    chart = Chart("1 & 2", axis, axis)
    chart.area(Series("<node>", "red"), np.array([0, 4]), np.zeros(2), np.array([0, 4]))
    texts = [element.text for element in ElementTree.fromstring(chart.svg(legend=True)).iter()]
    assert {"a < b", "1 & 2", "<node>"} <= set(texts)


def test_bar_heights_match_their_values():
    axis = Axis(label="", low=0, high=4)
    chart = Chart("", axis, axis)
    chart.bars(Series("", "red"), np.array([0, 1, 2]), np.zeros(2), np.array([2, 0]))
    (path,) = re.findall(r'd="(M[^"]+Z)"', chart.svg(legend=False))
    # The other bar has no height. The plot is 170 pixels high, and its right end is at 448.
    assert path == "M23.4 170.0V85.0H129.6V170.0Z"


def test_counts_are_marked_with_whole_numbers():
    for high in (1, 1.05, 2.1, 7, 1234):
        ticks = Axis(label="", low=0, high=high, whole=True).ticks()
        assert ticks == [round(tick) for tick in ticks]
        assert 2 <= len(ticks) <= 8


def test_the_text_of_the_last_mark_stays_in_the_picture():
    axis = Axis(label="", low=0, high=4, text=lambda value: f"{value:.0f} units of length")
    svg = Chart("", axis, Axis(label="", low=0, high=1)).svg(legend=False)
    (middle,) = re.findall(r'x="([0-9.]+)"[^>]*>4 units of length<', svg)
    width = float(re.search(r'viewBox="0 0 (\d+)', svg)[1])
    assert float(middle) + len("4 units of length") * 6 / 2 < width


def test_a_legend_with_many_long_names_takes_more_lines():
    axis = Axis(label="", low=0, high=4)
    chart = Chart("", axis, axis)
    for number in range(6):
        series = Series(f"node-with-a-long-name-{number}", "red")
        chart.area(series, np.array([0, 4]), np.zeros(2), np.array([0, 4]))
    boxes = re.findall(r'<rect x="([0-9.]+)" y="([0-9.]+)"', chart.svg(legend=True))
    assert len(set(boxes)) == 6
    assert max(float(x) for x, _ in boxes) < 300


@pytest.mark.parametrize(
    ("low", "high", "log", "ticks"),
    [
        (0, 1, False, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 1234567, False, [0, 500000, 1000000]),
        (1e-5, 1e4, True, [1e-5, 1e-3, 1e-1, 1e1, 1e3]),
        (0.03, 0.3, True, [0.05, 0.1, 0.2]),
    ],
)
def test_ticks_are_round_and_few(low, high, log, ticks):
    assert Axis(label="", low=low, high=high, log=log).ticks() == pytest.approx(ticks)


def test_inputs_in_progress_are_counted_from_start_to_end():
    ends, seconds = np.array([2.0, 3.0, 5.0]), np.array([2.0, 2.0, 1.0])
    assert at_work(np.array([0.5, 1.5, 2.5, 3.5, 4.5]), ends, seconds).tolist() == [1, 2, 1, 0, 1]


def test_facts_come_from_the_ledger_only(run, tmp_path):
    facts, _ = run({"a.txt": "good", "b.txt": "odd"})
    again = gather(open_ledger("out"), 1, "out")
    assert again.summary == facts.summary
    assert again.executed.equals(facts.executed)
