from dataclasses import replace

import numpy as np
import oracles
import pytest
import scipy.stats
import torch

import surefind as sf
from surefind import novelty as module
from surefind.novelty import (
    DIRECTIONS,
    FARTHEST,
    LEAST_SPREADS,
    NEAREST,
    SHRINKAGE,
    WEIGHTS,
    Novelty,
    fit_novelty,
    upper_rates,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def directions(values):
    return torch.nn.functional.normalize(values, dim=1)


def world(normal, n, m=24):
    """Vectors and embeddings of n examples of one law."""
    vectors = (normal(n, m).abs() + 0.1).float()
    return vectors, directions(vectors)


def fitted(normal, n=60, held_out=None, *, seed=0, **shape):
    sample = world(normal, n, **shape)
    return sample, fit_novelty(*sample, held_out=held_out, generator=generator(seed))


def doubles(*tensors):
    return [x.double().numpy() for x in tensors]


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("most", [DIRECTIONS, 5])
def test_its_parts_by_their_definitions(normal, monkeypatch, most, first):
    """Local outlier factor, density, and the Mahalanobis distance of the first numbers."""
    monkeypatch.setattr(module, "DIRECTIONS", most)
    vectors, embeddings = world(normal, 60)
    model = fit_novelty(vectors, embeddings, first=first, generator=generator())
    queries, asked = world(normal, 7)
    queries[0] *= torch.linspace(0.01, 30, 24)
    x, u, q, a = doubles(vectors, embeddings, queries, asked)
    factor = oracles.local_outlier_factor(x, x, q, NEAREST, SHRINKAGE, most, FARTHEST)
    far = np.sqrt(((a[:, None] - u[None]) ** 2).sum(axis=2))
    expected = np.log(np.stack([factor, np.sort(far, axis=1)[:, :NEAREST].mean(axis=1)], axis=1))
    if first:
        spread = x.std(axis=0, ddof=1)
        scale = spread + 0.01 * np.sqrt(np.mean(spread**2)) + 1e-12
        few, asked_few = (((v - x.mean(axis=0)) / scale)[:, :first] for v in (x, q))
        own = np.linalg.inv(np.cov(few.T, bias=True) + 1e-4 * np.eye(first))
        expected = np.c_[expected, [np.sqrt(g @ own @ g) for g in asked_few]]
    np.testing.assert_allclose(model.parts(queries, asked), expected, rtol=1e-3, atol=1e-3)


def test_references_are_some_in_random_order(normal, monkeypatch):
    monkeypatch.setattr(module, "REFERENCES", 25)
    (_, embeddings), model = fitted(normal)
    assert len(model.references) == 25
    assert not torch.equal(model.references, embeddings[:25])
    assert (torch.cdist(model.references, embeddings).min(1).values < 1e-3).all()


def test_the_sum_of_standard_scores(normal):
    known = world(normal, 50)
    model = fit_novelty(*world(normal, 60), first=2, held_out=known, generator=generator())
    parts = model.parts(*known).double()
    standard = (parts - parts.mean(0)) / parts.std(0).maximum(torch.tensor(LEAST_SPREADS))
    total = (1 + standard.exp()).log() @ torch.tensor(WEIGHTS).double()
    torch.testing.assert_close(total.sort().values, model.known.double(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(model.score(*known).double(), total, atol=1e-4, rtol=1e-4)


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
    held_out = None if cross_fitted else known
    model = fit_novelty(*sample, held_out=held_out, generator=generator(seed))
    return float((model.of(*asked) <= alpha).float().mean())


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
    both = lambda x: (x, directions(x))
    draw = lambda n: (
        (centres[torch.arange(n) % 4] + 0.05 * normal(n, 8).float())
        * (1 + 0.1 * normal(n, 1).float())
    )
    model = fit_novelty(*both(draw(400)), held_out=both(draw(400)), generator=generator())
    asked = draw(400)
    assert (model.of(*both(asked)) <= 0.01).float().mean() <= 0.02
    for factor in (10, -1):
        assert (model.of(*both(factor * asked)) <= 0.01).all()
    others = directions(normal(400, 8)).float()
    assert (model.of(*both(others)) <= 0.01).float().mean() > 0.9


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounding_of_unit_vectors_is_no_event(normal, dtype):
    sample, known, asked = (directions(normal(400, 16).float() + 2) for _ in range(3))
    model = fit_novelty(sample, sample, held_out=(known, known), generator=generator())
    rounded = asked.to(dtype).float()
    assert (model.of(asked, asked) <= 0.05).float().mean() < 0.06
    assert (model.of(rounded, rounded) <= 0.05).float().mean() < 0.07


def test_copies_among_the_training_data_are_not_novel(normal):
    """Exact copies have no distance to each other; rounding must not pass for one."""
    copy = world(normal, 1, 10)[0]

    def with_copies():
        vectors = torch.cat([world(normal, 300, 10)[0], copy.expand(60, -1)])
        return vectors, directions(vectors)

    model = fit_novelty(*with_copies(), held_out=with_copies(), generator=generator())
    assert float(model.of(copy, directions(copy))[0]) > 0.5


def test_constant_data_give_a_model_without_nan():
    same = torch.ones(30, 5)
    model = fit_novelty(same, directions(same), generator=generator())
    assert all(t.isfinite().all() for t in model.tensors().values())
    assert (model.of(same, directions(same)) > 0.5).all()


def test_what_is_no_number_is_as_novel_as_can_be(normal):
    _, model = fitted(normal, held_out=world(normal, 100))
    queries, asked = world(normal, 8)
    for row, value in enumerate([torch.nan, torch.inf, -torch.inf, 1e30, 3e38]):
        queries[row, row] = value
    p = model.of(queries, asked)
    torch.testing.assert_close(p[:5], torch.full((5,), model.least))
    assert (p > 0).all()
    assert p[5] > model.least


def test_order_and_company_hardly_matter(normal):
    _, model = fitted(normal, held_out=world(normal, 100))
    queries, asked = world(normal, 40)
    alone = [model.score(queries[i : i + 1], asked[i : i + 1]) for i in range(40)]
    torch.testing.assert_close(model.score(queries, asked), torch.cat(alone), atol=1e-4, rtol=1e-4)


def test_tensors_put_it_together_again(normal):
    for held_out in (None, world(normal, 30)):
        _, model = fitted(normal, held_out=held_out)
        again = Novelty.restored(model.tensors())
        asked = world(normal, 9)
        assert torch.equal(again.of(*asked), model.of(*asked))
        assert again.held_out is (held_out is not None)


def test_the_generator_decides_and_nothing_else(normal):
    sample = world(normal, 60)
    state = torch.get_rng_state()
    fits = [fit_novelty(*sample, generator=generator(s)) for s in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(fits[0].known, fits[1].known)
    assert not torch.equal(fits[0].known, fits[2].known)


def test_too_few_examples_are_refused(normal):
    sample, few = world(normal, 60), world(normal, 19)
    with pytest.raises(sf.DegenerateError) as refused:
        fit_novelty(*few, generator=generator())
    assert refused.value.field == "dataset"
    with pytest.raises(sf.DegenerateError) as refused:
        fit_novelty(*sample, held_out=few, generator=generator())
    assert refused.value.field == "held_out"
    fit_novelty(*world(normal, 20), generator=generator())


def test_with_many_classes_cross_fitting_leaves_out_whole_ones():
    """People: an example with others of its own among the references is nearer than a new person is."""
    source = generator(3)
    centres = torch.randn(240, 16, generator=source)
    who = torch.arange(1200) % 200
    people = lambda chosen: centres[chosen] + 0.15 * torch.randn(len(chosen), 16, generator=source)
    known, new = people(who), people(200 + torch.arange(400) % 40)
    shares = {}
    for name, groups in (("examples", None), ("classes", who), ("few classes", who % 10)):
        both = lambda x: (x, directions(x))
        model = fit_novelty(*both(known), groups=groups, generator=generator())
        shares[name] = float((model.of(*both(new)) <= 0.05).float().mean())
    assert shares["examples"] > 0.5
    assert shares["few classes"] == shares["examples"]
    assert shares["classes"] <= 0.15  # 40 people, each ten times: the promise is about more
