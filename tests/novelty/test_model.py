from dataclasses import replace

import numpy as np
import oracles
import pytest
import scipy.stats
import torch

import surefind as sf
from surefind.novelty import model as module
from surefind.novelty.model import (
    DIRECTIONS,
    FARTHEST,
    NEAREST,
    SHRINKAGE,
    NoveltyModel,
    fit_novelty_model,
    upper_rates,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def directions(values):
    return torch.nn.functional.normalize(values, dim=1)


def world(normal, n, m=12, z=4, *, stages=2):
    """Statistics of stages and embeddings of n examples of one law."""
    statistics = [(normal(n, m).abs() + 0.1).float() for _ in range(stages)]
    return statistics, directions(normal(n, z)).float()


def fitted(normal, n=60, held_out=None, *, maps=True, seed=0, **shape):
    sample = world(normal, n, **shape)
    return sample, fit_novelty_model(
        *sample, maps=maps, held_out=held_out, generator=generator(seed)
    )


def test_shapes_are_scored_by_their_local_outlier_factor(normal):
    (statistics, _), model = fitted(normal)
    queries, embeddings = world(normal, 7)
    queries[0][0] *= torch.linspace(0.01, 30, 12)
    parts = model.shape.score(module.shapes(queries))
    unit_rows = lambda stages: np.concatenate(
        [s / np.sqrt((s**2).mean(1, keepdims=True)) for s in (x.double().numpy() for x in stages)],
        1,
    )
    expected = oracles.local_outlier_factor(
        unit_rows(statistics),
        unit_rows(statistics),
        unit_rows(queries),
        NEAREST,
        SHRINKAGE,
        DIRECTIONS,
        FARTHEST,
    )
    np.testing.assert_allclose(parts.exp(), expected, rtol=1e-4)
    assert embeddings.shape == (7, 4)


def test_few_directions_and_few_references(normal, monkeypatch):
    """Whitening is of all examples; references are the first of a random order."""
    monkeypatch.setattr(module, "DIRECTIONS", 5)
    monkeypatch.setattr(module, "REFERENCES", 25)
    values, queries = normal(60, 9), normal(6, 9)
    found = module._fit_references(values, FARTHEST).score(queries.float())
    expected = oracles.local_outlier_factor(
        values.numpy(), values[:25].numpy(), queries.numpy(), NEAREST, SHRINKAGE, 5, FARTHEST
    )
    np.testing.assert_allclose(found.exp(), expected, rtol=1e-4)


def test_scores_by_their_definitions(normal):
    (statistics, embeddings), model = fitted(normal)
    queries, asked = world(normal, 5)
    raw = model._scores(queries, asked).double()
    unit = np.array([np.sqrt((x.double().numpy() ** 2).mean()) for x in statistics])
    logs = lambda stages: np.concatenate(
        [np.log(x.double().abs().numpy() / u + 1e-3) for x, u in zip(stages, unit, strict=True)], 1
    )
    lof = oracles.local_outlier_factor(
        logs(statistics),
        logs(statistics),
        *(logs(queries), NEAREST, SHRINKAGE, DIRECTIONS, FARTHEST),
    )
    np.testing.assert_allclose(raw[:, 1].exp(), lof, rtol=1e-4)
    lengths = lambda stages: np.stack(
        [
            np.log(np.sqrt((x.double().numpy() ** 2).mean(1)) / u + 1e-6)
            for x, u in zip(stages, unit, strict=True)
        ],
        axis=1,
    )
    gap = lengths(queries) - lengths(statistics).mean(0)
    covariance = np.cov(lengths(statistics).T, bias=True) + 1e-4 * np.eye(2)
    mahalanobis = [g @ np.linalg.inv(covariance) @ g for g in gap]
    np.testing.assert_allclose(raw[:, 2], np.sqrt(mahalanobis), rtol=1e-3)
    far = np.sqrt(((asked[:, None] - embeddings[None]) ** 2).sum(2).double().numpy())
    np.testing.assert_allclose(raw[:, 3].exp(), np.sort(far, axis=1)[:, :10].mean(1), rtol=1e-4)


def test_the_sum_of_standard_scores(normal):
    known = world(normal, 50)
    _, model = fitted(normal, held_out=known)
    parts = model.parts(*known).double()
    torch.testing.assert_close(parts.mean(0), torch.zeros(4).double(), atol=1e-4, rtol=0)
    total = (1 + parts.exp()).log() @ torch.tensor([1.0, 1.0, 1.0, 2.0]).double()
    torch.testing.assert_close(total.sort().values, model.known.double(), atol=1e-4, rtol=1e-4)
    assert model.names == ("shape", "log_shape", "magnitude", "density")
    assert fitted(normal, maps=False)[1].names == ("shape", "magnitude", "density")


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.999])
@pytest.mark.parametrize("n", [20, 300, 5000])
def test_the_bound_is_garwoods_and_a_little_above_clopper_and_pearsons(n, confidence):
    rates = upper_rates(n, confidence).numpy()
    counts = sorted({0, 1, 2, 5, n // 10, n // 2, n - 1, n})
    for k in counts:
        np.testing.assert_allclose(rates[k], min(1, oracles.garwood(k, confidence) / n), rtol=1e-9)
        exact = oracles.clopper_pearson(k, n, confidence)
        assert rates[k] >= exact * (1 - 1e-9)
        if rates[k] <= 0.1:
            assert rates[k] <= exact * 1.06
    assert (np.diff(rates) >= 0).all()
    assert 0 < rates[0] < rates[-1] <= 1


def test_known_scores_are_counted_with_ties(normal):
    known = torch.tensor([-1.0, 0.0, 0.0, 0.0, 0.5, 0.5, 2.0] * 5).sort().values
    asked = torch.tensor([-5.0, -1.0, -0.5, 0.0, 0.25, 0.5, 1.0, 2.0, 2.5, torch.inf, torch.nan])
    bare = replace(fitted(normal)[1], known=known)
    above = [oracles.at_least(known.tolist(), s) for s in asked.tolist()]
    torch.testing.assert_close(bare.p_value(asked), upper_rates(35, 0.95)[above].float())
    assert bare.least == pytest.approx(float(upper_rates(35, 0.95)[0]))


def test_more_known_examples_reach_smaller_p():
    assert float(upper_rates(299, 0.95)[0]) > 0.01 > float(upper_rates(300, 0.95)[0])
    assert float(upper_rates(2995, 0.95)[0]) > 0.001 > float(upper_rates(2996, 0.95)[0])


@pytest.mark.parametrize("n", [300, 1000, 5000])
@pytest.mark.parametrize("alpha", [0.01, 0.05])
def test_the_promise_holds_for_these_very_examples(n, alpha):
    """In at most 5 % of the draws of known scores, the rate of flagged known inputs is above α."""
    worlds = 1000
    rng = np.random.default_rng(n)
    scores = np.sort(rng.standard_normal((worlds, n)), axis=1)
    rates = upper_rates(n, 0.95).numpy()
    flagged = int(np.searchsorted(rates, alpha, side="right")) - 1  # the largest k with p <= α
    # p(x) <= α if at most so many known scores are at least s(x): s is above the next of them.
    true_rate = scipy.stats.norm.sf(scores[:, n - 1 - flagged])
    broken = float((true_rate > alpha).mean())
    assert broken <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / worlds)
    if n == 5000:
        assert true_rate.mean() > alpha / 2  # it is a bound, but not an empty one


def rate_of_flags(normal, seed, alpha, *, cross_fitted, fresh=4000):
    """Of fresh Gaussian vectors, the share that a model of other ones flags."""
    draw = lambda n: (values := normal(n, 6).float(), directions(values))
    sample, known, asked = draw(400), draw(400), draw(fresh)
    model = fit_novelty_model(
        [sample[0]],
        sample[1],
        maps=False,
        held_out=None if cross_fitted else ([known[0]], known[1]),
        generator=generator(seed),
    )
    p = model.p_value(model.score([asked[0]], asked[1]))
    return float((p <= alpha).float().mean())


@pytest.mark.slow
@pytest.mark.parametrize("worlds", [20, pytest.param(100, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("cross_fitted", [False, True])
def test_the_promise_holds_from_end_to_end_with_gaussian_vectors(normal, cross_fitted, worlds):
    """Cross-fitted scores are of worse models than the one that is used, so they are on the safe side."""
    alpha = 0.05
    rates = np.array([
        rate_of_flags(normal, i, alpha, cross_fitted=cross_fitted) for i in range(worlds)
    ])
    sampling = 2 * np.sqrt(alpha * (1 - alpha) / 4000)  # of the fresh ones
    assert (rates > alpha + sampling).mean() <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / worlds)
    assert rates.mean() > (0.005 if cross_fitted else 0.025)


def test_other_lengths_and_other_directions_are_novel(normal):
    centres = directions(normal(4, 8)).float()
    draw = lambda n: (
        (centres[torch.arange(n) % 4] + 0.05 * normal(n, 8).float())
        * (1 + 0.1 * normal(n, 1).float())
    )
    sample, known, asked = draw(400), draw(400), draw(400)
    model = fit_novelty_model(
        [sample], directions(sample), maps=False, held_out=([known], directions(known)),
        generator=generator(),
    )  # fmt: skip
    p = lambda x: model.p_value(model.score([x], directions(x)))
    assert (p(asked) <= 0.01).float().mean() <= 0.02
    for factor in (10, 0.1):
        assert (p(factor * asked) <= 0.01).all()
    assert (p(-asked) <= 0.01).all()
    assert (p(directions(normal(400, 8)).float()) <= 0.01).float().mean() > 0.9


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounding_of_unit_vectors_is_no_event(normal, dtype):
    """Their lengths say nothing, and must not where they are stored with fewer bits."""
    draw = lambda n: directions(normal(n, 16).float() + 2)
    sample, known, asked = draw(400), draw(400), draw(400)
    model = fit_novelty_model(
        [sample], sample, maps=False, held_out=([known], known), generator=generator()
    )
    p = model.p_value(model.score([asked], asked))
    rounded = model.p_value(model.score([asked.to(dtype).float()], asked))
    assert (p <= 0.05).float().mean() < 0.06
    assert (rounded <= 0.05).float().mean() < 0.07
    assert (model.p_value(model.score([1.3 * asked], asked)) <= 0.01).all()


def test_copies_among_the_training_data_are_not_novel(normal):
    """Exact copies have no distance to each other; rounding must not pass for one."""
    draw = lambda n: (normal(n, 10).abs() + 0.1).float()
    copy = draw(1)
    sample = torch.cat([draw(300), copy.expand(60, -1)])
    known = (torch.cat([draw(300), copy.expand(60, -1)]),)
    known = (list(known), directions(known[0]))
    model = fit_novelty_model(
        [sample], directions(sample), maps=True, held_out=known, generator=generator()
    )
    assert (model.parts([copy], directions(copy))[0, :2] < 0).all()
    assert float(model.p_value(model.score([copy], directions(copy)))[0]) > 0.5


def test_constant_data_give_a_model_without_nan():
    same = torch.ones(30, 5)
    embeddings = directions(same)
    model = fit_novelty_model([same], embeddings, maps=True, generator=generator())
    assert all(t.isfinite().all() for t in model.tensors().values())
    p = model.p_value(model.score([same], embeddings))
    assert (p > 0.5).all()


def test_what_is_no_number_is_as_novel_as_can_be(normal):
    _, model = fitted(normal, held_out=world(normal, 100))
    queries, embeddings = world(normal, 8)
    bad = [torch.nan, torch.inf, -torch.inf, 1e30, 1e20, 3e38]
    for row, value in enumerate(bad):
        queries[0][row, 0] = value
    queries[1][6] = torch.nan
    p = model.p_value(model.score(queries, embeddings))
    assert torch.equal(p[:7], torch.full((7,), model.least))
    assert (p > 0).all()
    assert p[7] > model.least


def test_order_and_company_hardly_matter(normal):
    _, model = fitted(normal, held_out=world(normal, 100))
    queries, embeddings = world(normal, 40)
    together = model.score(queries, embeddings)
    alone = torch.cat([
        model.score([q[i : i + 1] for q in queries], embeddings[i : i + 1]) for i in range(40)
    ])
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=1e-4)


def test_tensors_put_it_together_again(normal):
    for maps in (True, False):
        _, model = fitted(normal, maps=maps, held_out=world(normal, 30) if maps else None)
        again = NoveltyModel.restored(model.tensors())
        asked = world(normal, 9)
        assert torch.equal(again.score(*asked), model.score(*asked))
        assert again.held_out is maps
        assert again.confidence == model.confidence
        assert again.names == model.names


def test_the_generator_decides_and_nothing_else(normal):
    sample = world(normal, 60)
    state = torch.get_rng_state()
    fits = [fit_novelty_model(*sample, maps=True, generator=generator(s)) for s in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(fits[0].known, fits[1].known)
    assert not torch.equal(fits[0].known, fits[2].known)


def test_too_few_examples_are_refused(normal):
    sample, few = world(normal, 60), world(normal, 19)
    with pytest.raises(sf.DegenerateError) as refused:
        fit_novelty_model(*few, maps=True, generator=generator())
    assert refused.value.field == "dataset"
    with pytest.raises(sf.DegenerateError) as refused:
        fit_novelty_model(*sample, maps=True, held_out=few, generator=generator())
    assert refused.value.field == "held_out"
    fit_novelty_model(*world(normal, 20), maps=True, generator=generator())


def test_with_many_classes_cross_fitting_leaves_out_whole_ones():
    """People: an example with others of its own among the references is nearer than a new person is."""
    source = generator(3)
    centres = torch.randn(240, 16, generator=source)
    who = torch.arange(1200) % 200
    people = lambda chosen: centres[chosen] + 0.15 * torch.randn(len(chosen), 16, generator=source)
    known, new = people(who), people(200 + torch.arange(400) % 40)
    shares = {}
    for name, groups in (("examples", None), ("classes", who), ("few classes", who % 10)):
        model = fit_novelty_model(
            [known], directions(known), maps=False, groups=groups, generator=generator()
        )
        p = model.p_value(model.score([new], directions(new)))
        shares[name] = float((p <= 0.05).float().mean())
    assert shares["examples"] > 0.5
    assert shares["few classes"] == shares["examples"]
    assert shares["classes"] <= 0.15  # 40 people, each ten times: the promise is about more
