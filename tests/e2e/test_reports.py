"""The pages that commands write: no sideways scrolling, and nothing serious by axe."""

import shutil
from pathlib import Path

import pytest
from e2e.test_access import violations
from typer.testing import CliRunner

from surefind.cli.app import app

pytestmark = pytest.mark.e2e
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    for name in ("fashion-mnist", "cub200-frozen-resnet50"):
        shutil.copytree(RESULTS / name, folder / name)
    made = CliRunner().invoke(app, ["report", str(folder)])
    assert made.exit_code == 0, made.output
    return f"file://{folder}/report.html"


@pytest.mark.parametrize("width", [390, 1280])
def test_the_benchmark_report_fits(open_page, report, width):
    page = open_page(report, wait=False, viewport={"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(page) == []


def test_every_table_of_the_benchmark_report_is_seen_whole_on_a_desk(open_page, report):
    page = open_page(report, wait=False, viewport={"width": 1280, "height": 900})
    cut = page.evaluate(
        "[...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth)"
        ".map((e) => e.ariaLabel)"
    )
    assert cut == []
