"""A dataset's story on one page: what came of its inputs, how fast, and what failed and why."""

from batchmill.publishing.report.facts import Facts, gather
from batchmill.publishing.report.page import Report, write_report

__all__ = ["Facts", "Report", "gather", "write_report"]
