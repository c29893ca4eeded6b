"""`--log-steps`: the lines that steps print and log, limited in number."""

from batchmill.core.outcome import Outcome
from batchmill.runs.shards.step_log import StepLog


def outcome(name, lines, kind="ok"):
    return Outcome(
        name, name, kind, 1, 0.1, 0.0, "here", log="".join(f"{n}\n" for n in range(lines))
    )


def log_of(outcomes, seconds=()):
    """Return what a log sends, by input. The clock shows `seconds`."""
    sent, times = [], iter(seconds or [10.0] * len(outcomes))
    log = StepLog(sent.append, lambda: next(times))
    recorded = [log.add(one) for one in outcomes]
    log.end()
    return sent, recorded


def test_the_last_lines_of_an_input_are_sent():
    ((name, lines),), _ = log_of([outcome("a", 25)])
    assert (name, lines[0], lines[-1]) == ("a", "... 5 earlier lines left out", "24")
    assert len(lines) == 21


def test_lines_above_the_limit_per_second_are_counted():
    sent, _ = log_of([outcome(f"{n}", 20) for n in range(8)])
    assert [name for name, _ in sent] == ["0", "1", "2", "3", "4", ""]
    assert sent[-1].lines == ("60 lines left out, more than 100 per second",)


def test_the_limit_ends_after_a_second():
    seconds = [10.0] * 6 + [11.0]
    sent, _ = log_of([outcome(f"{n}", 20) for n in range(7)], seconds)
    assert [name for name, _ in sent] == ["0", "1", "2", "3", "4", "", "6"]


def test_only_the_log_of_an_input_that_is_not_ok_is_recorded():
    sent, recorded = log_of([outcome("a", 2), outcome("b", 2, "failed"), outcome("c", 0)])
    assert [one.log for one in recorded] == ["", "0\n1\n", ""]
    assert [name for name, _ in sent] == ["a", "b"]
