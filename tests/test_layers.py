"""Imports point one way: a module may import its own stage and those above it in the list, no other."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "surefind"
STAGES = [
    *("errors", "checks", "tensor_checks", "files", "embeddings"),
    *(
        "neighbours",
        "pairs",
        "data",
        "models",
        "metrics",
        "curvature",
        "posterior",
        "novelty",
    ),
    "labels",
    *("learning", "estimators", "decisions", "gallery", "evaluation"),
    *("demo", "service", "cli", "paper"),
    *("__main__", "__init__"),
]
"""From what everything rests on to what nothing may import."""


@cache
def modules():
    """Map each module's dotted name to its imports of this package, wherever in the file they stand."""
    paths = {name_of(path): path for path in ROOT.rglob("*.py")}
    return {name: set(imports(path)) & paths.keys() for name, path in paths.items()}


def name_of(path):
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield from (node.module, f"{node.module}.{alias.name}")
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def stage(name):
    return name.split(".")[1]


def test_every_module_has_a_stage():
    unknown = {stage(name) for name in modules()} - {*STAGES}
    assert not unknown, f"give {sorted(unknown)} a place in STAGES"


def test_imports_point_one_way():
    rank = {name: place for place, name in enumerate(STAGES)}
    back = [
        f"{name} imports {other}"
        for name, others in modules().items()
        for other in others
        if rank[stage(other)] > rank[stage(name)]
    ]
    assert not back, "\n".join(back)


def test_no_modules_import_each_other_in_a_circle():
    left = modules()
    while left:
        # A package imports its modules to offer their names; that is no circle.
        free = [
            name
            for name, others in left.items()
            if not {o for o in others & left.keys() if not name.startswith(f"{o}.")} - {name}
        ]
        assert free, f"a circle among {sorted(left)}"
        for name in free:
            del left[name]
