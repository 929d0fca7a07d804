import json

import pytest

from surefind.evaluation import bench


def test_a_line_a_cell_and_never_a_cell_twice(surefind, quick, tmp_path):
    command = ("bench", "digits", "--methods", "deterministic,margin")
    code, out, err = surefind(*command)
    assert code == 0, err
    assert "2 cells of digits, 0 of them there already." in out
    assert "deterministic, seed 0: recall@1" in out
    assert "1 left, about" in out
    assert "epoch" not in out  # a line a cell, not a line a stage
    code, out, err = surefind(*command)
    assert code == 0, err
    assert "2 cells of digits, 2 of them there already." in out
    assert "took" not in out


def test_own_images_are_compared_too(surefind, pets, tmp_path):
    # Enough to look at ten neighbours in the test part.
    for label in ("cat", "dog"):
        first = (pets / label / "0.png").read_bytes()
        for i in range(4, 24):
            (pets / label / f"{i}.png").write_bytes(first)
    command = ("bench", pets, "--ood", pets / "dog", "--methods", "deterministic", "--epochs", 1)
    code, _, err = surefind(*command)
    assert code == 0, err
    cell = json.loads((tmp_path / "results" / "pets" / "deterministic-seed0.json").read_text())
    assert cell["protocol"]["epochs"] == 1


def test_too_few_images_are_noticed_before_training(surefind, pets, tmp_path):
    code, out, err = surefind("bench", "pets", "--methods", "deterministic")
    assert code == 1
    assert "pets cannot be benchmarked: evaluation looks at 10 neighbours of each query" in err
    assert "20 in a class are enough" in err
    assert not out
    assert not (tmp_path / "results").exists()


def test_a_place_that_cannot_be_written_is_noticed_first(surefind, tmp_path):
    (tmp_path / "file").touch()
    code, out, err = surefind("bench", "digits", "--out", "file")
    assert code == 1
    assert "cannot write to file" in err
    assert not out


def test_a_stopped_benchmark_names_the_command_that_goes_on(surefind, monkeypatch, quick):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "run_problem", stop)
    code, _, err = surefind("bench", "digits", "--methods", "pfe")
    assert code == 1
    assert "finished cells are kept. Go on with: surefind bench digits --methods pfe" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("imagenet",), "'imagenet' is neither a set with a benchmark (fashion-mnist, cifar10,"),
        (("imagenet",), "nor a folder or a list of images of your own"),
        (("digits", "--epochs", -1), "epochs must be a whole number of at least 0"),
        (("digits", "--methods", "lam"), "method must be one of 'all'"),
        (("digits", "--seeds", 0), "seeds must be a whole number of at least 1"),
        (("digits", "--epochs", 3), "--ood and --epochs are for your own images"),
    ],
)
def test_mistakes_get_a_sentence(surefind, tmp_path, arguments, message):
    code, _, err = surefind("bench", *arguments)
    assert code == 1
    assert message in err
    assert not list(tmp_path.iterdir())
