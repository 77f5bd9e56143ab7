"""The report of a run: one HTML file that opens anywhere, and a few lines for the terminal."""

from vitrail.training.runs.report.report_page import write_report
from vitrail.training.runs.report.summary import summarize

__all__ = ["summarize", "write_report"]
