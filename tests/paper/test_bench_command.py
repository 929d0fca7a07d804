import json

import pytest

from surefind.paper import running
from surefind.paper.bench_command import result_lines


def test_a_line_per_result_and_never_a_result_twice(surefind, quick, tmp_path):
    command = ("bench", "digits", "--methods", "deterministic,margin")
    code, out, err = surefind(*command)
    assert code == 0, err
    assert "2 results of digits, 0 of them there already." in out
    assert "deterministic, seed 0: recall@1" in out
    assert "1 left, about" in out
    assert "epoch" not in out + err  # a line per result, not a line a stage
    code, out, err = surefind(*command)
    assert code == 0, err
    assert "2 results of digits, 2 of them there already." in out
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
    result = json.loads((tmp_path / "results" / "pets" / "deterministic-seed0.json").read_text())
    assert result["protocol"]["epochs"] == 1


def test_too_few_images_are_noticed_before_training(refused, pets, tmp_path):
    error = refused("bench", "pets", "--methods", "deterministic")
    assert error.field == "test"
    assert error.hint
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("option", ["out", "work"])
def test_a_place_that_cannot_be_written_is_noticed_first(refused, tmp_path, option):
    (tmp_path / "file").touch()
    assert refused("bench", "digits", f"--{option}", "file").field == option


def test_a_stopped_benchmark_names_the_command_that_goes_on(surefind, monkeypatch, quick):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "run_problem", stop)
    code, _, err = surefind("bench", "digits", "--methods", "pfe")
    assert code == 1
    assert "finished results are kept. Go on with: surefind bench digits --methods pfe" in err


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("imagenet",), "source"),
        (("digits", "--epochs", -1), "epochs"),
        (("digits", "--methods", "lam"), "method"),
        (("digits", "--seeds", 0), "seeds"),
        (("digits", "--epochs", 3), "epochs"),
        (("digits", "--recipe", "paper"), "recipe"),
        (("cifar10", "--recipe", "mine"), "recipe"),
    ],
)
def test_mistakes_get_a_sentence(refused, tmp_path, arguments, field):
    assert refused("bench", *arguments).field == field
    assert not list(tmp_path.iterdir())


def test_a_result_says_what_detects_best(capsys):
    on_result = result_lines(2)
    values = {"recall@1": 0.8, "auroc": 0.4, "nearest_distance_auroc": 0.8}
    for stage in (None, values):
        on_result("pfe", 0, stage)
    shown = " ".join(capsys.readouterr().out.split())
    assert "pfe, seed 0: OOD inputs: nearest distance detects them best (0.800); κ 0.400." in shown


def test_a_frozen_backbone_is_passed_once(surefind, refused, pets, backbone, tmp_path):
    for label in ("cat", "dog"):
        for i in range(4, 24):
            (pets / label / f"{i}.png").write_bytes((pets / label / "0.png").read_bytes())
    command = ("bench", pets, "--backbone", backbone, "--methods", "deterministic", "--epochs", 1)
    frozen = (*command, "--freeze-backbone", "--trained-stages", 1, "--cache", "cache")
    code, out, err = surefind(*frozen)
    assert code == 0, err
    assert "Results are in results/pets-last1-tiny-resnet." in out
    result = tmp_path / "results" / "pets-last1-tiny-resnet" / "deterministic-seed0.json"
    assert json.loads(result.read_text())["protocol"]["epochs"] == 1
    assert list((tmp_path / "cache").glob("*/features.npy"))
    assert refused(*command, "--trained-stages", 1).field == "trained_stages"
    assert refused(*command, "--cache", "cache").field == "cache"
    assert refused("bench", pets, "--freeze-backbone").field == "freeze_backbone"
    assert refused(*command, "--freeze-backbone", "--trained-stages", 9).field == "trained_stages"
