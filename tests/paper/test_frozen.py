import json
from dataclasses import replace

import numpy as np
import pytest
from paper.conftest import PROTOCOL

import surefind as sf
from surefind.data.inputs import FeatureViews
from surefind.data.sources import load_folder
from surefind.learning.feature_cache import FeaturePass
from surefind.learning.seeds import seeded
from surefind.paper.frozen import frozen_problem, with_features
from surefind.paper.protocols import Problem, on_backbone, training_parts
from surefind.paper.running import run_problem


@pytest.fixture
def birds(folders, backbone):
    """Photographs of 24 classes, the last twelve for the test, to be embedded by a backbone."""
    source, noise = folders("birds", range(24), images=20), folders("noise", [30], images=20)
    images, ood = load_folder(source)["all"], load_folder(noise)["all"]
    build, preprocessing = on_backbone(backbone, augment=False)
    protocol = replace(PROTOCOL, backbone=backbone.name, learning_rate=1e-5, validation="class")
    train, validation = training_parts(images[images.labels < 12], "class")
    test = images[images.labels >= 12]
    return Problem(
        "birds",
        protocol,
        build,
        train,
        test,
        ood=ood,
        preprocessing=preprocessing,
        validation=validation,
    )


def test_a_frozen_problem_is_another_one_with_a_protocol_of_its_own(birds, tmp_path):
    frozen, last = frozen_problem(birds), frozen_problem(birds, trained_stages=1)
    assert (frozen.name, last.name) == ("birds-frozen-tiny-resnet", "birds-last1-tiny-resnet")
    settings = frozen.protocol.settings()
    assert settings["frozen"]
    assert settings["head"] == "identity"
    assert (last.protocol.epochs, last.protocol.online_epochs) == (3, 3)
    assert last.protocol.settings()["trained_stages"] == 1
    with pytest.raises(sf.InputError) as refusal:
        frozen_problem(replace(birds, protocol=replace(birds.protocol, backbone=None)))
    assert refusal.value.field == "freeze_backbone"


def test_the_head_of_places_starts_whitened_within_them(birds, placed):
    protocol = replace(birds.protocol, margin=0.1)
    problem = replace(placed, protocol=protocol)
    frozen = frozen_problem(problem)
    assert frozen.freezing.head == frozen.protocol.head == "whitened-within"
    assert frozen.protocol.margin > protocol.margin
    assert frozen_problem(birds).protocol.margin == birds.protocol.margin


@pytest.mark.parametrize("trained_stages", [pytest.param(0, marks=pytest.mark.nightly), 1])
def test_all_methods_are_measured_on_features_computed_once(
    birds, tmp_path, trained_stages, monkeypatch
):
    passed = []
    compute = FeaturePass._compute

    def counted(self, inputs):
        passed.append(len(inputs))
        return compute(self, inputs)

    monkeypatch.setattr(FeaturePass, "_compute", counted)
    problem = frozen_problem(birds, trained_stages=trained_stages, cache=tmp_path / "cache")
    places = {"results": tmp_path / "results", "work": tmp_path / "work"}
    methods = ["deterministic", "laplace-posthoc", "mc-dropout", "mahalanobis", "novelty"]
    run_problem(problem, methods, [0], **places)
    parts = [*problem.parts.values(), problem.validation]
    images = sum(len(part) for part in parts if part is not None)
    tries = sum(part is not None for part in parts)  # one image of each part tells the shapes
    assert sum(passed) == images + tries
    for method in methods:
        file = tmp_path / "results" / problem.name / f"{method}-seed0.json"
        result = json.loads(file.read_text())
        assert result["protocol"]["frozen"]
        assert set(result["files"]) == {"train", "test", "ood"}
    assert (tmp_path / "work" / problem.name / "laplace-posthoc-seed0.npz").exists()  # pictures
    passed.clear()
    run_problem(problem, methods, [0], **places)
    assert passed == []


def test_features_give_what_the_images_give(birds, tmp_path):
    problem = frozen_problem(birds)
    made = with_features(problem, tmp_path, lambda *_: None)
    assert isinstance(made.test.inputs, FeatureViews)
    assert list((tmp_path / "features").iterdir())
    assert made.data("id").inputs is problem.test.inputs
    assert made.files == problem.files
    how = {"method": "laplace-posthoc", "epochs": 1, "preprocessing": problem.preprocessing}
    encoder = problem.build(seeded(0, "encoder"))
    learner = sf.MetricLearner(encoder, freeze_backbone=problem.freezing, **how).fit(made.train)
    cached, live = learner.embed(made.test), learner.embed(problem.test)
    for name in ("mean", "kappa", "novelty"):
        np.testing.assert_allclose(getattr(cached, name), getattr(live, name), rtol=1e-4, atol=1e-6)
