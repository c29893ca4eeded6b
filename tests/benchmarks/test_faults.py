"""The benchmark of bad files and kills: its judge, its files, and two of its tools."""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[2]
GOOD = {"000001.txt": "river 1 stone cloud\n", "000002.txt": "amber 2 field north\n"}


@pytest.fixture(autouse=True)
def _from_the_repository(monkeypatch):
    """Make `benchmarks` importable: it is not part of the package."""
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.fixture
def judge():
    import benchmarks.peers.faults.judge

    return benchmarks.peers.faults.judge


@pytest.fixture
def right(judge):
    return judge.right_rows(GOOD, 4)


def rows_of(right):
    return [{"name": name, **row} for name, row in right.items()]


def test_right_rows_are_those_of_the_function(judge, tmp_path, monkeypatch):
    from benchmarks.peers.faults.step import work

    log = tmp_path / "log"
    log.touch()
    monkeypatch.setenv("FAULTS_LOG", str(log))
    for name, text in GOOD.items():
        (tmp_path / name).write_text(text)
    rows = [work(tmp_path / name) for name in GOOD]
    assert log.read_text().split() == list(GOOD)
    assert rows == rows_of(judge.right_rows(GOOD, 4))
    assert rows != rows_of(judge.right_rows(GOOD, 5))


def test_all_files_are_delivered_if_all_rows_are_right(judge, right):
    verdict = judge.judge(rows_of(right), [], right, ["000003.txt"])
    assert verdict == judge.Verdict(2, 2, 0, 0, 0, [], 0)


def test_a_file_without_a_row_is_lost(judge, right):
    verdict = judge.judge(rows_of(right)[:1], [], right, [])
    assert (verdict.delivered, verdict.lost) == (1, 1)


def test_a_file_with_two_rows_counts_twice_and_is_delivered(judge, right):
    rows = rows_of(right)
    verdict = judge.judge([*rows, rows[0], rows[0]], [], right, [])
    assert (verdict.delivered, verdict.twice, verdict.wrong) == (2, 1, 0)


@pytest.mark.parametrize("column", ["word", "digest"])
def test_a_row_that_differs_is_wrong_and_not_delivered(judge, right, column):
    first, second = rows_of(right)
    verdict = judge.judge([first, {**second, column: "?"}], [], right, [])
    assert (verdict.delivered, verdict.lost, verdict.wrong) == (1, 0, 1)


def test_a_row_of_a_bad_or_unknown_file_is_wrong(judge, right):
    row = rows_of(right)[0]
    rows = [*rows_of(right), {**row, "name": "000003.txt"}, {**row, "name": "000009.txt"}]
    verdict = judge.judge(rows, [], right, ["000003.txt"])
    assert (verdict.delivered, verdict.wrong, verdict.twice) == (2, 2, 0)


def test_a_row_with_an_error_names_its_file_and_is_no_result(judge, right):
    failed = [{"name": "000003.txt", "error": "bad"}, {"name": "000001.txt", "error": "bad"}]
    verdict = judge.judge([*failed, rows_of(right)[1]], [], right, ["000003.txt"])
    assert verdict == judge.Verdict(2, 1, 1, 0, 0, ["000003.txt"], 1)


def test_names_in_messages_are_divided_into_bad_and_good_files(judge, right):
    names = judge.names_in(["error in /in/000003.txt", "000001.txt, 000001.txt"])
    verdict = judge.judge(rows_of(right), names, right, ["000003.txt", "000004.txt"])
    assert (verdict.named, verdict.accused) == (["000003.txt"], 1)


def test_tables_of_all_kinds_are_read(judge, right, tmp_path):
    rows = rows_of(right)
    (tmp_path / "rows.jsonl").write_text(f"\n{json.dumps(rows[0])}\n" + '{"name": "000002')
    assert judge.read_rows(tmp_path) == rows[:1]
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "000002.txt.json").write_text(json.dumps(rows[1]))
    (tmp_path / "rows" / ".temporary.json").write_text(json.dumps(rows[1]))
    assert judge.read_rows(tmp_path) == rows[::-1]
    (tmp_path / "dataset").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "dataset" / "metadata.parquet")
    assert judge.read_rows(tmp_path) == [*rows, *rows[::-1]]
    nested = pa.Table.from_pylist([{"path": "x", "row": row} for row in rows])
    pq.write_table(nested, tmp_path / "rows.parquet")
    assert judge.read_rows(tmp_path)[-2:] == rows


def test_messages_include_logs_and_failures(judge, tmp_path):
    (tmp_path / "logs" / "a").mkdir(parents=True)
    (tmp_path / "logs" / "a" / "1.log").write_text("one")
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "failures.csv").write_text("two")
    (tmp_path / "stderr.log").write_text("three")
    messages = judge.read_messages(tmp_path, [tmp_path / "stderr.log"])
    assert sorted(messages) == ["one", "three", "two"]


def test_files_are_the_same_each_time_and_have_the_bad_ones(tmp_path):
    from benchmarks.peers.faults.files import make_files

    one, two = (make_files(tmp_path / name, 40, {"raise": 5, "hang": 1}, 3) for name in ("a", "b"))
    assert one == two
    assert sorted(one.bad.values()) == ["hang", *["raise"] * 5]
    assert len(one.good) == 34
    for name, kind in one.bad.items():
        assert name not in one.good
        assert (
            (tmp_path / "a" / name).read_bytes().startswith(b"\xff" if kind == "raise" else b"hang")
        )


def test_each_script_gets_the_function_and_its_changed_line(tmp_path):
    from benchmarks.peers.faults.tools import TOOLS
    from benchmarks.peers.faults.trial import CHANGE

    for tool in TOOLS:
        tool.write_code(tmp_path / tool.name)
        (code,) = (tmp_path / tool.name).iterdir()
        assert CHANGE[0] in code.read_text()
        compile(code.read_text(), code, "exec")
        tool.write_code(tmp_path / tool.name, CHANGE)
        assert CHANGE[0] not in code.read_text()
        assert CHANGE[1] in code.read_text()


def test_figures_of_other_tools_stay_if_the_options_are_the_same(tmp_path):
    from benchmarks.faults import add_earlier

    same = {"made": "2026-11-29", "files": 40, "kills": 2, "limit": 60.0}
    parts = {name: {"for_loop": "old"} for name in ("titles", "versions", "limits")}
    earlier = same | parts | {"tools": {"for_loop": {"raise": 1, "hang": 1}}}
    path = tmp_path / "figures.json"
    path.write_text(json.dumps(earlier))
    new = {name: {"batchmill": "new"} for name in parts}
    figures = same | new | {"tools": {"batchmill": {"raise": 2}}}
    add_earlier(figures, path)
    assert figures["tools"] == {"for_loop": {"raise": 1, "hang": 1}, "batchmill": {"raise": 2}}
    assert figures["titles"] == {"for_loop": "old", "batchmill": "new"}
    again = {**same, **parts, "tools": {"for_loop": {"raise": 3}}}
    add_earlier(again, path)
    assert again["tools"] == {"for_loop": {"raise": 3, "hang": 1}}
    other = {**same, **new, "files": 41, "tools": {"batchmill": {"raise": 2}}}
    add_earlier(other, path)
    assert list(other["tools"]) == ["batchmill"]


def test_versions_of_all_tools_are_pinned():
    from benchmarks.peers.faults.tools import TOOLS

    assert all(tool.version for tool in TOOLS)


def test_a_loop_skips_bad_files_and_loses_those_after_a_crash(monkeypatch, capsys, tmp_path):
    import benchmarks.faults

    figures = tmp_path / "figures.json"
    command = ["faults", "--tools", "for_loop", "process_pool", "--files", "40", "--kills", "2"]
    command += ["--trials", "raise", "crash", "change", "kill", "--figures", str(figures)]
    monkeypatch.setattr(sys, "argv", command)
    benchmarks.faults.main()
    found = json.loads(figures.read_text())
    assert not found["troubles"]
    loop, pool = found["tools"]["for_loop"], found["tools"]["process_pool"]
    for tool in (loop, pool):
        first, second = tool["raise"]["runs"]
        assert (first["exit"], first["executed"], first["delivered"]) == (1, 40, 35)
        assert (first["lost"], len(first["named"]), first["accused"]) == (0, 5, 0)
        assert second["executed"] == 5
        change = tool["change"]
        assert [change[name]["executed"] for name in ("again", "more", "changed")] == [0, 1, 0]
        # The rows are those of the earlier code.
        assert change["changed"]["wrong"] == 41
        assert (tool["kill"]["last"]["delivered"], tool["kill"]["last"]["twice"]) == (40, 0)
        assert tool["kill"]["killed"] >= 1
        # At least the file in progress is executed again.
        assert tool["kill"]["executed"] > 40
    (bad,) = loop["crash"]["bad"]
    crashed = loop["crash"]["runs"][0]
    assert (crashed["exit"], crashed["delivered"], crashed["named"]) == (-6, int(bad[:6]), [])
    # The pool names all files that it has not done.
    assert pool["crash"]["runs"][0]["named"] == [bad]
    assert pool["crash"]["runs"][0]["lost"] == pool["crash"]["runs"][0]["accused"] > 0
    assert "| `for` loop with `try` Python" in capsys.readouterr().out
