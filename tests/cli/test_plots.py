import numpy as np
import pytest

from surefind.cli.plots import draw_curves, draw_history, draw_uncertainty


def test_figures_do_not_depend_on_the_day(tmp_path):
    curves = {"roc": {"x": [0.0, 1.0], "y": [0.0, 1.0]}, "new": {"x": [0.0], "y": [1.0]}}
    for name in ("a", "b"):
        draw_curves(curves, tmp_path / name)
    assert {p.name for p in (tmp_path / "a").iterdir()} == {"roc.svg", "new.svg"}
    assert (tmp_path / "a" / "roc.svg").read_bytes() == (tmp_path / "b" / "roc.svg").read_bytes()


def test_a_history_of_several_stages_is_one_figure(tmp_path):
    epochs = [{"loss": 1.0, "seconds": 1.0}, {"loss": 0.5, "seconds": 1.0}]
    draw_history({"encoder": epochs, "variance": epochs[:1]}, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["loss.svg"]


def test_without_an_uncertainty_there_is_no_figure_of_it(tmp_path):
    draw_uncertainty({"id": np.zeros(5)}, tmp_path)
    assert not list(tmp_path.iterdir())
    draw_uncertainty({"id": np.array([0.0, 0.1, np.inf]), "ood": np.array([1.0])}, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["uncertainty.svg"]


@pytest.fixture
def undrawn(monkeypatch):
    for module in ("train", "evaluate"):
        monkeypatch.setattr(f"surefind.cli.{module}.can_draw", lambda: False)


def test_without_matplotlib_everything_else_is_there(surefind, undrawn, tmp_path):
    code, _, err = surefind("train", "digits", "--out", "run", "--epochs", 1)
    assert code == 0, err
    assert "matplotlib is not installed" in (tmp_path / "run" / "log.txt").read_text()
    code, out, err = surefind("evaluate", "run", "--samples", 0)
    assert code == 0, err
    assert "no figures: matplotlib is not installed" in out
    assert not (tmp_path / "run" / "plots").exists()
