import math
from dataclasses import replace

import numpy as np
import pytest
import small_learners
import torch

import surefind as sf
from surefind.learning.methods import LaplaceOnline, LaplacePosthoc
from surefind.learning.seeds import seeded
from surefind.paper import recipes
from surefind.paper.protocols import PROTOCOLS, load_problem
from surefind.paper.recipes import PAPER_PROTOCOLS, SampledEmbedder, recipe_protocol
from surefind.paper.results import read_result
from surefind.paper.running import build_method, method_settings, run_problem
from surefind.paper.vocabulary import RECIPES


@pytest.mark.parametrize(
    ("name", "ood", "numbers"),
    [
        ("fashion-mnist", ["mnist", "test"], (0.7, 20, 20, 256, 64, 1e-3)),
        ("cifar10", ["svhn", "test"], (0.7, 20, 40, 256, 256, 1e-5)),
    ],
)
def test_the_papers_settings_are_recorded(name, ood, numbers):
    keys = ["margin", "epochs", "online_epochs", "batch_size", "online_batch_size", "learning_rate"]
    assert recipe_protocol("paper", name).settings() == {
        "ood": ood,
        **dict(zip(keys, numbers, strict=True)),
        "validation": "none",
        "recipe": "paper",
        "squared": False,
        "kappa_samples": 100,
        "novelty": False,
        "loss": "UnsquaredContrastive(margin=0.7)",
    }


def test_decay_network_and_ood_sets_are_those_of_the_set():
    for name, protocol in PAPER_PROTOCOLS.items():
        assert protocol.decay == math.exp(-0.1)
        assert (protocol.build, protocol.ood) == (PROTOCOLS[name].build, PROTOCOLS[name].ood)


@pytest.mark.parametrize(("name", "n"), [("fashion-mnist", 60_000), ("cifar10", 50_000)])
def test_lam_has_a_fixed_posterior_and_the_rest_its_defaults(name, n):
    protocol = recipe_protocol("paper", name)
    posthoc, online = (build_method(f"laplace-{s}", protocol) for s in ("posthoc", "online"))
    assert posthoc == LaplacePosthoc(scale=float(n**2), prior_precision=1.0)
    assert online == LaplaceOnline(
        memory=1e-4,
        scale=float(n**2),
        prior_precision=float(n),
        tuning="trained",
        approximation="fixed",
    )
    assert method_settings("laplace-online", protocol)["memory"] == 1e-4
    assert build_method("pfe", protocol) == build_method("pfe")


def test_what_has_no_recipe_is_refused():
    for recipe, name in (("paper", "digits"), ("mine", "cifar10"), ("released", "fashion-mnist")):
        with pytest.raises(sf.InputError) as refusal:
            recipe_protocol(recipe, name)
        assert refusal.value.field == "recipe"
    assert list(RECIPES) == list(recipes.BY_RECIPE) == ["paper", "released"]


def test_the_released_codes_recipe_differs_in_learning_rate_and_memory_alone():
    text, code = (recipe_protocol(recipe, "cifar10") for recipe in RECIPES)
    changed = {"recipe": "released", "learning_rate": pytest.approx(256 * text.learning_rate)}
    assert code.settings() == text.settings() | changed
    ours, theirs = (method_settings("laplace-online", protocol) for protocol in (text, code))
    assert theirs == ours | {"memory": 1e-3}
    assert method_settings("laplace-posthoc", text) == method_settings("laplace-posthoc", code)


@pytest.fixture(scope="module")
def learner():
    train, _ = small_learners.digits()
    return small_learners.learner("laplace-posthoc", novelty=False).fit(train)


def test_kappa_of_many_samples_is_that_of_the_closed_form(learner):
    x = small_learners.digits()[1].read()[:20]
    exact = learner.fitted.embed(x)
    found = SampledEmbedder(learner.fitted, 4000, seed=0).embed(x)
    torch.testing.assert_close(found.kappa, exact.kappa, rtol=0.15, atol=0)
    assert (found.mean * exact.mean).sum(1).min() > 0.99


def test_kappa_of_a_hundred_samples_is_the_papers_estimate(learner):
    x = small_learners.digits()[1].read()[:9]
    embedder = SampledEmbedder(learner.fitted, 100, seed=3)
    whole, parts = embedder.embed(x), [embedder.embed(part) for part in x.split(4)]
    # The same networks embed every batch.
    torch.testing.assert_close(torch.cat([p.kappa for p in parts]), whole.kappa, rtol=1e-3, atol=0)
    other = SampledEmbedder(learner.fitted, 100, seed=4)
    assert not torch.allclose(other.embed(x).kappa, whole.kappa, rtol=1e-3)
    draw = learner.fitted.sampler(100, joint=True, generator=seeded(3, "kappa"))
    mean = draw(x).double().mean(0).numpy()
    length = np.linalg.norm(mean, axis=1)
    kappa = length * (3 - length**2) / (1 - length**2)
    np.testing.assert_allclose(whole.kappa.double().numpy(), kappa, rtol=1e-3)
    np.testing.assert_allclose(whole.mean.numpy(), mean / length[:, None], atol=1e-5)
    assert embedder.network is learner.fitted.network
    assert small_learners.tensors_equal(embedder.tensors(), learner.fitted.tensors())


def test_a_recipe_runs_under_a_name_of_its_own(tmp_path):
    made = replace(
        PAPER_PROTOCOLS["fashion-mnist"],
        build=PROTOCOLS["digits"].build,
        ood=PROTOCOLS["digits"].ood,
        epochs=1,
        online_epochs=1,
        ece_samples=4,
        options=recipes._laplace_options(1500),
    )
    problem = load_problem("digits", protocol=made)
    assert problem.name == "digits-paper"
    assert problem.validation is None
    assert problem.preprocessing is None
    methods = ["deterministic", "laplace-posthoc", "laplace-online"]
    options = {"results": tmp_path / "r", "work": tmp_path / "w"}
    run_problem(problem, methods, [0], **options)
    found = {m: read_result(tmp_path / "r" / "digits-paper" / f"{m}-seed0.json") for m in methods}
    for method, result in found.items():
        assert result.protocol["recipe"] == "paper"
        assert result.settings == method_settings(method, made)
        assert "novelty_auroc" not in result.values
    for method in methods[1:]:
        assert "auroc" in found[method].values
        assert found[method].posterior["least_precision"] >= (1 if "posthoc" in method else 1500)
    # What is there is kept: the settings that are compared are the recipe's.
    run_problem(problem, methods, [0], **options, report=lambda *_: pytest.fail("trained again"))
