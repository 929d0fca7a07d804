"""The report of a benchmark: one page to look at, and tables for documentation, from result files.

    results = read_results(folder)
    write_report(results, Path("report.html"), Path("report.md"), pictures=work, published=PAPER)

Tables and curves come from the result files alone. Images, sphere points and their like are not committed
with them: the benchmark writes them beside its training work with `write_pictures`, and a page made
without them leaves those sections out.
"""

from surefind.evaluation.artifacts import (
    SpherePoints,
    extreme_images,
    sphere_points,
    write_pictures,
)
from surefind.evaluation.corruptions import corruption_curves
from surefind.evaluation.report.markdown import markdown_tables
from surefind.evaluation.report.page import write_report
from surefind.evaluation.report.paper import PAPER, Published
from surefind.evaluation.results import Results, read_results

__all__ = [
    "PAPER",
    "Published",
    "Results",
    "SpherePoints",
    "corruption_curves",
    "extreme_images",
    "markdown_tables",
    "read_results",
    "sphere_points",
    "write_pictures",
    "write_report",
]
