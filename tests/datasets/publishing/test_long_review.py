"""A review with many failures says how many it leaves out."""

from batchmill.datasets.publishing.report.review import Review


def review(failures):
    return Review(
        dataset="out",
        changes=(),
        inputs=500,
        sample=500,
        seed=1,
        results=500 - failures,
        different=0,
        counts={},
        most_changed=(),
        appeared={f"{number:03}.txt": f"no header in {number}" for number in range(failures)},
        vanished={},
        columns=(),
        seconds=(1.0, 1.0),
        bytes=(1.0, 1.0),
    )


def test_the_lines_and_the_page_count_the_failures_that_they_leave_out():
    lines = "\n".join(review(120).lines())
    assert "009.txt: no header in 9" in lines
    assert "010.txt" not in lines
    assert "... and 110 more" in lines
    page = review(120).html()
    assert "099.txt" in page
    assert "100.txt" not in page
    assert "... and 20 more." in page


def test_a_review_that_leaves_out_nothing_does_not_say_so():
    assert "more" not in "\n".join(review(10).lines()).partition("failures")[2]
    assert "... and" not in review(100).html()
