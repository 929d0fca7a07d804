"""Imports point one way. Each stage may import only the stages listed for it."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "surefind"
BASE = {"errors", "validation"}
MAY_IMPORT = {
    "errors": set(),
    "files": set(),
    "validation": {"errors"},
    "embeddings": BASE,
    "sphere": BASE,
    "relations": BASE,
    "pairs": BASE | {"relations"},
    "losses": BASE | {"pairs", "relations"},
    "mining": BASE | {"pairs", "relations"},
    "curvature": BASE | {"pairs", "relations"},
    "vmf": BASE | {"embeddings"},
    "posterior": BASE | {"relations", "curvature", "embeddings", "sphere", "vmf"},
    "seeds": set(),
    "processes": set(),
    "data": BASE | {"relations"},
    "models": BASE,
    "objectives": BASE | {"relations", "losses", "mining"},
    "passes": {"data", "relations"},
    "train": BASE | {"data", "models", "relations", "processes", "seeds"},
    "runs": BASE | {"data", "models", "objectives", "processes", "train"},
    "metrics": BASE,
    "decisions": BASE | {"metrics"},
    "gallery": BASE | {"embeddings", "vmf", "decisions"},
    "service": BASE | {"embeddings", "gallery", "data", "passes"},
    "vectors": BASE
    | {"relations", "pairs", "curvature", "posterior", "data", "models", "objectives"}
    | {"methods", "train", "retrieval"},
    "report": BASE | {"data", "files"},
    "retrieval": BASE | {"embeddings", "relations", "vmf"},
    "methods": BASE
    | {"data", "models", "pairs", "relations", "objectives", "train", "runs", "processes", "seeds"}
    | {"curvature", "embeddings", "passes", "posterior", "metrics", "retrieval"},
}
TOP = {
    *("__init__", "__main__", "learner", "laplace_head", "evaluation"),
    "sampled_neighbours",
    *("bench", "demo", "cli"),
}


def stage_of(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_stages(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from (n.split(".")[1] for n in names if n.startswith(f"{ROOT.name}."))


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path):
    stage = stage_of(path)
    if stage in TOP:
        return
    assert set(imported_stages(path)) <= MAY_IMPORT[stage] | {stage}


def test_allowed_imports_have_no_cycle():
    left = dict(MAY_IMPORT)
    while left:
        free = [s for s, needs in left.items() if not needs & left.keys()]
        assert free, f"cycle among {sorted(left)}"
        for s in free:
            del left[s]
