"""Every command prints one JSON document with `--json`, and nothing else on the standard output."""

import json

import numpy as np
import typer

import surefind as sf
from surefind.cli.app import app

COMMANDS = {
    "doctor": ((), {"surefind", "python", "libraries", "missing"}),
    "train": (
        ("digits", "--out", "t", "--method", "deterministic", "--epochs", 0),
        {"run", "model", "method", "examples", "stages", "novelty"},
    ),
    "fit": (
        ("a.npz", "--out", "r", "--set", "scale=200", "--set", "prior_precision=1000"),
        {"run", "model", "method", "examples", "embedding_dim"},
    ),
    "embed": (("r", "a.npz", "--out", "e.npz"), {"file", "count", "dim", "median_kappa"}),
    "evaluate": (("r", "b.npz"), {"run", "file", "test", "values", "intervals"}),
    "index": (
        ("a.npz", "--run", "r", "--out", "g"),
        {"gallery", "added", "updated", "continued", "items", "dim"},
    ),
    "calibrate": (
        ("g", "b.npz", "--run", "r", "--max-wrong", 0.3),
        {"gallery", "reached", "threshold", "queries", "summary", "operating_points"},
    ),
    "search": (
        ("g", "b.npz", "--run", "r", "-k", 2),
        {"query", "label", "probability", "decision", "reasons", "kappa", "novelty", "neighbours"},
    ),
    "audit": (("g",), {"summary", "items", "findings"}),
    "items": (("g", "a/1"), {"id", "label", "kappa", "novelty", "group", "payload"}),
    "serve": (("g", "--check"), {"gallery", "items", "calibrated", "settings"}),
    "demo": ((), {"page", "run", "gallery"}),
}
"""What each is given, in an order in which each finds what it needs, and what its document has."""

PAPER = {"bench", "report", "data"}
"""Commands of an extra, tried with it."""


def commands(group=None, name=""):
    for key, inner in (group or typer.main.get_command(app)).commands.items():
        if hasattr(inner, "commands"):
            yield from commands(inner, f"{key} ")
        else:
            yield f"{name}{key}", inner


def test_every_command_has_the_option_and_is_tried_here():
    found = dict(commands())
    without = [n for n, c in found.items() if not any("--json" in p.opts for p in c.params)]
    assert not without
    assert set(found) - PAPER == set(COMMANDS)


def test_every_command_prints_one_document(surefind, monkeypatch):
    monkeypatch.setattr("surefind.cli.demo.run_demo", lambda *_, **__: None)
    monkeypatch.setattr("surefind.cli.demo.write_page", lambda *_: None)
    rng = np.random.default_rng(0)
    y = np.arange(120) % 4
    x = rng.normal(size=(4, 6))[y] + 0.3 * rng.normal(size=(120, 6))
    for name, rows in (("a", slice(0, 60)), ("b", slice(60, 120))):
        np.savez(f"{name}.npz", features=x[rows].astype(np.float32), labels=y[rows])
    for name, (arguments, keys) in COMMANDS.items():
        code, out, err = surefind(*name.split(), *arguments, "--json")
        assert code == 0, f"{name}: {err}"
        found = json.loads(out)  # one document, and nothing else
        assert keys <= (found[0] if isinstance(found, list) else found).keys(), name


def test_a_mistake_leaves_the_standard_output_empty(surefind):
    code, out, err = surefind("items", "nowhere", "--json")
    assert (code, out) == (1, "")
    assert err.startswith("Error: there is no gallery at nowhere.")
    code, out, err = surefind("items", "--json")
    assert (code, out) == (2, "")
    assert "GALLERY" in err


def test_the_version_is_told(surefind):
    assert surefind("--version") == (0, f"surefind {sf.__version__}", "")
