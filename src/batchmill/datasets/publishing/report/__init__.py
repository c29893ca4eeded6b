"""A dataset's report on one page: outcomes, speed, and failures with their reasons."""

from batchmill.datasets.publishing.report.facts import Facts
from batchmill.datasets.publishing.report.page import Report, write_report

__all__ = ["Facts", "Report", "write_report"]
