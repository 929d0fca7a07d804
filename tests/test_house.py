"""The size of the house: counts that may only fall.

`CEILINGS` holds what was counted last. A count above its ceiling fails and names what to remove first; one
below it fails too, until it is written down: ``python tests/test_house.py`` writes them.

Code lines are lines that hold a token of the program: no blank lines, comments or docstrings. A raise site
is a ``raise`` with an exception. Options are the options and arguments of all commands, without ``--help``
and ``--json``. What the extra ``paper`` brings is counted by itself.
"""

import ast
import io
import json
import tempfile
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "surefind"
CEILINGS = Path(__file__).with_name("house.json")
PLUMBING = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
PAPER_COMMANDS = {"bench", "report", "data"}


def modules(paper=False):
    return [p for p in sorted(SOURCE.rglob("*.py")) if (SOURCE / "paper" in p.parents) == paper]


def code_lines(path):
    text = path.read_text()
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in PLUMBING | {tokenize.ENDMARKER}:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstring_lines(ast.parse(text)))


def docstring_lines(tree):
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, owners) and ast.get_docstring(node, clean=False) is not None:
            found.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return found


def raise_sites(path):
    nodes = ast.walk(ast.parse(path.read_text()))
    return sum(isinstance(node, ast.Raise) and node.exc is not None for node in nodes)


def commands():
    """Return each command's parameters, ``items list`` being a command of its own."""
    import typer

    from surefind.cli.app import app

    def leaves(group, path=()):
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from leaves(command, (*path, name))
            else:
                named = {p.name for p in command.params} - {"help", "as_json"}
                yield (*path, name), len(named)

    return dict(leaves(typer.main.get_command(app)))


def operations():
    import surefind as sf
    from surefind.service.app import create_app
    from surefind.service.settings import Settings

    with tempfile.TemporaryDirectory() as folder:
        paths = create_app(sf.Gallery(), settings=Settings(folder=Path(folder))).openapi()["paths"]
    return sum(len(methods) for methods in paths.values())


def counts():
    import surefind as sf

    ours, papers = modules(), modules(paper=True)
    listed = commands()
    of_paper = {path for path in listed if path[0] in PAPER_COMMANDS}
    return {
        "files": len(ours),
        "code lines": sum(map(code_lines, ours)),
        "files of the paper": len(papers),
        "code lines of the paper": sum(map(code_lines, papers)),
        "raise sites": sum(map(raise_sites, ours)),
        "raise sites of the paper": sum(map(raise_sites, papers)),
        "public names": len(set(sf.__all__)),
        "Gallery members": sum(not name.startswith("_") for name in dir(sf.Gallery)),
        "Decider members": sum(not name.startswith("_") for name in dir(sf.Decider)),
        "commands": len(listed) - len(of_paper),
        "commands of the paper": len(of_paper),
        "options": sum(n for path, n in listed.items() if path not in of_paper),
        "options of the paper": sum(n for path, n in listed.items() if path in of_paper),
        "HTTP operations": operations(),
        "lines of tests": sum(len(p.read_text().splitlines()) for p in ROOT.glob("tests/**/*.py")),
    }


@pytest.fixture(scope="module")
def counted():
    return counts()


@pytest.mark.parametrize("name", json.loads(CEILINGS.read_text()))
def test_the_house_only_gets_smaller(name, counted):
    ceiling = json.loads(CEILINGS.read_text())[name]
    assert counted[name] <= ceiling, (
        f"{counted[name]} {name}, and there were {ceiling}. Remove as much as you add: merge what has "
        "one importer, delete what no example, benchmark or page uses."
    )
    assert counted[name] == ceiling, (
        f"{counted[name]} {name}, fewer than the {ceiling} written down: run python tests/test_house.py."
    )


if __name__ == "__main__":
    import sys

    sys.path.insert(0, str(Path(__file__).parent))
    CEILINGS.write_text(json.dumps(counts(), indent=2) + "\n")
