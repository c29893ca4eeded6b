"""Errors of Ray become one short line, with the cause first."""

import pytest

from batchmill.orchestration.cluster.address_check import short_reason


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The worker died.\n\n  Traceback\n  ...\n", "The worker died. ..."),
        ("one line", "one line"),
        ("", "RuntimeError"),
        ("h" * 1000 + "\nend", "h" * 300 + "... end"),
        ("No module 'x'\nmiddle\n" + "h" * 1000, "No module 'x' " + "h" * 300 + "..."),
    ],
)
def test_the_first_line_has_the_cause(text, expected):
    assert short_reason(RuntimeError(text)) == expected
