"""Documentation runs, and what is generated is up to date."""

import importlib.util
import re
import runpy
import warnings
from pathlib import Path

import pytest
from test_house import commands

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LONG = {"export.md"}
LONG |= {"day_two.py", "decisions.py", "train_digits.py", "what_the_diagonal_costs.py"}
"""What takes so long that it runs nightly."""
WITH_SNIPPETS = [p for p in PAGES if SNIPPET.search(p.read_text())]


def name(path):
    return str(path.relative_to(ROOT))


def script(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sometimes(cases, nightly):
    """Mark the cases of some names as nightly."""
    return [
        pytest.param(case, marks=pytest.mark.nightly) if case.name in nightly else case
        for case in cases
    ]


@pytest.mark.parametrize("page", sometimes(WITH_SNIPPETS, LONG), ids=name)
def test_snippets_run(page, tmp_path, monkeypatch, capsys):
    """One after the other, printing what is shown; tuned by fewer examples than they ask for."""
    snippets = tmp_path / "snippets.py"
    snippets.write_text("\n".join(SNIPPET.findall(page.read_text())))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("surefind.posterior.tuning.SHAPES", (0.01, 1.0))
    monkeypatch.setattr("surefind.posterior.tuning.EXAMPLES", 100)
    monkeypatch.setattr("surefind.evaluation.evaluate.RESAMPLES", 20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runpy.run_path(str(snippets))
    printed = words(capsys.readouterr().out)
    for shown in re.findall(
        r"^```\n\n```text\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL
    ):
        assert words(shown) in printed


def words(text):
    """Return a text without its numbers, which another processor rounds otherwise."""
    return re.sub(r"\d+(\.\d+)?", "#", " ".join(text.split()))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_examples_are_shown_whole():
    made = script(DOCS / "make_examples.py")
    assert sorted(made.SCRIPTS) == EXAMPLES, "add it to docs/make_examples.py"
    shown = made.parts(page_text("examples.md"))
    codes = {example.name: example.read_text() for example in EXAMPLES}
    assert {name: code for name, (_, code) in shown.items()} == codes, "run docs/make_examples.py"


@pytest.mark.parametrize("example", sometimes(EXAMPLES, LONG), ids=name)
def test_examples_print_what_the_page_shows(example):
    made = script(DOCS / "make_examples.py")
    shown, _ = made.parts(page_text("examples.md"))[example.name]
    assert made.alike(made.run(example), shown), "run python docs/make_examples.py, and look"


def test_outputs_are_alike_where_only_numbers_differ_a_little():
    alike = script(DOCS / "make_examples.py").alike
    assert alike("171 queries,\n3 wrong", "171 queries, 3 wrong")
    assert alike("recall 0.912", "recall 0.930")
    assert not alike("recall 0.912", "recall 0.812")
    assert not alike("3 wrong", "4 wrong")
    assert not alike("171 match", "171 review")
    assert not alike("171 match", "171 match, 2 wrong")


def test_command_line_page_has_every_command():
    hooks = script(DOCS / "hooks.py")
    listed = [m[1].split() for m in hooks.HELP.finditer(page_text("reference/command-line.md"))]
    assert sorted(listed) == sorted([[], *map(list, commands())])
    assert "Usage: surefind items " in hooks.help_of(["items"])


def page_text(path):
    return (DOCS / path).read_text()


@pytest.fixture
def made(monkeypatch):
    """The script that makes the pages of results; its pages are in a module beside it."""
    monkeypatch.syspath_prepend(DOCS)
    return script(DOCS / "make_results.py")


def test_results_are_up_to_date(made):
    """The pages and the README's table are those of the committed result files."""
    found = made.read_results(made.RESULTS)
    pages = made.result_pages(found)
    files = made.files(found, pages)
    for file, text in files.items():
        assert file.read_text() == text, f"{name(file)}: run python docs/make_results.py"
    labels = made.PAGES / "labels.md"  # benchmarks/labels.py makes it
    assert {*made.PAGES.glob("*.md")} == {*files, labels} - {made.README}
    for page in pages:
        svg = (made.PAGES / f"{page.name}.svg").read_text()
        assert label(svg) == label(page.svg), f"{page.name}.svg: run python docs/make_results.py"
        assert len(svg) < 60_000


def label(svg):
    """Return a figure in words, with its numbers: bytes depend on the version of matplotlib."""
    return re.search(r'aria-label="([^"]*)"', svg)[1]


def test_benchmarks_are_up_to_date():
    module = script(ROOT / "benchmarks" / "tables.py")
    assert module.PAGE.read_text() == module.page(), "run python benchmarks/tables.py"


def test_the_page_about_labels_has_the_measured_numbers(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    module = script(ROOT / "benchmarks" / "labels.py")
    assert module.PAGE.read_text() == module.page(module.results()), (
        "run python benchmarks/labels.py"
    )
