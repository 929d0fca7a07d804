"""Documentation runs, and what is generated is up to date."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


SNIPPET = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
WITH_SNIPPETS = [p for p in PAGES if p.name != "reference.md" and SNIPPET.search(p.read_text())]


@pytest.mark.parametrize("page", WITH_SNIPPETS, ids=lambda p: p.name)
def test_snippets_run(page, tmp_path):
    """As a reader would run them: one after the other, in a process of their own."""
    script = tmp_path / "snippets.py"
    script.write_text("\n".join(SNIPPET.findall(page.read_text())))
    run = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_reference_is_up_to_date():
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "make_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text() == module.page(), "run python docs/make_reference.py"


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(example, tmp_path):
    run = subprocess.run(
        [sys.executable, example], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout


def test_results_are_up_to_date():
    """The page and the README's table are those of the committed result files."""
    spec = importlib.util.spec_from_file_location("results", ROOT / "docs" / "make_results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.read_results(module.RESULTS)
    assert module.PAGE.read_text() == module.page(found), "run python docs/make_results.py"
    assert module.README.read_text() == module.readme(found), "run python docs/make_results.py"
