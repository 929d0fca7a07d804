import math

import numpy as np
import oracles
import pytest
import small_learners
import torch
from sklearn.metrics import roc_auc_score

import surefind as sf
from surefind.decisions.label_posterior import LabelModel, label_posterior
from surefind.evaluation.evaluate import evaluate, judge
from surefind.paper import label_vote
from surefind.paper.label_vote import Asked, fit_votes, hold_votes, neighbourhood, vote_shares

N, Z = 40, 3


@pytest.fixture
def world(generator):
    """Vectors of four classes that overlap, of uneven sizes, with κ."""
    labels = torch.tensor([0, 1, 1, 2, 2, 2, 3, 3])[torch.arange(N) % 8]
    centres = torch.randn(4, Z, generator=generator, dtype=torch.float64)
    noise = torch.randn(N, Z, generator=generator, dtype=torch.float64)
    mean = torch.nn.functional.normalize(centres[labels] + 0.6 * noise, dim=1)
    kappa = 10 ** (1 + torch.rand(N, generator=generator, dtype=torch.float64))
    return sf.Embeddings(mean, kappa), labels


def match(a, b):
    """Log of the integral of the product of two von Mises-Fisher densities."""
    (mu, ka), (nu, kb) = a, b
    joint = float((ka * mu + kb * nu).norm())
    # In three dimensions the normaliser is κ / (4π sinh κ).
    one, other, both = (
        math.log(float(k) / (4 * math.pi * math.sinh(float(k)))) for k in (ka, kb, joint)
    )
    return one + other - both


def brute_scores(queries, items, i, *, closed, weighted):
    """What a query's neighbours are weighed and ranked by; its own cosine is None in a closed set."""
    cosines = [float(queries.mean[i] @ other) for other in items.mean]
    if closed:
        cosines[i] = None
    if not weighted:
        return cosines, cosines
    own = queries.mean[i], queries.kappa[i]
    return [match(own, item) for item in zip(items.mean, items.kappa, strict=True)], cosines


def brute_shares(queries, items, item_labels, model, *, closed, weighted, voters=100):
    """Shares and the nearest item's label of each query."""
    names = item_labels.tolist()
    found = []
    for i in range(len(queries)):
        scores, cosines = brute_scores(queries, items, i, closed=closed, weighted=weighted)
        fitted = model.temperature, model.sharpness, model.prior
        found.append(oracles.label_shares(scores, cosines, names, voters, *fitted))
    return found


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "gallery"])
@pytest.mark.parametrize("voters", [100, 7])
def test_shares_equal_their_definition_over_all_items(world, monkeypatch, weighted, closed, voters):
    monkeypatch.setattr(label_vote, "VOTERS", voters)
    both, labels = world
    queries, items = (both, both) if closed else (both[:15], both[15:])
    asked, searched = (labels, labels) if closed else (labels[:15], labels[15:])
    found = neighbourhood(
        *(queries.mean, asked), *((None, None) if closed else (items.mean, searched))
    )
    model = LabelModel(0.7 if weighted else 0.05, 1.7, prior=0.8)
    if weighted:
        found = found.weighted(queries.kappa.numpy(), items.kappa.numpy(), Z)
    shares = vote_shares(found, model)
    wanted = brute_shares(
        queries, items, searched, model, closed=closed, weighted=weighted, voters=voters
    )
    for i, (share, nearest) in enumerate(wanted):
        best = max(share, key=share.get)
        assert shares.voted[i] == pytest.approx(share[best], rel=1e-9)
        assert shares.nearest[i] == pytest.approx(share[nearest], rel=1e-9)
        assert shares.right[i] == (best == int(asked[i]))


def test_a_share_is_the_posterior_of_a_label_that_is_there(world):
    both, labels = world
    found, model = neighbourhood(both.mean, labels), LabelModel(0.05, 2.0, 1.0, 3.0)
    posterior = label_posterior(found.votes, model)
    expected = posterior.probability[:, 0] / (1 - posterior.none)
    np.testing.assert_allclose(vote_shares(found, model).voted, expected, rtol=1e-9)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_the_fit_is_as_likely_as_any_temperature_and_sharpness(world, weighted):
    both, labels = world
    model = fit_votes(Asked(both, labels))["weighted" if weighted else "plain"]
    assert model.weighting == ("match" if weighted else "cosine")
    assert model.enrolled == N

    def shares(t, c, prior):
        other = LabelModel(t, c, prior=prior)
        found = brute_shares(both, both, labels, other, closed=True, weighted=weighted)
        return [share for share, _ in found]

    def loss(t, c, prior):
        # γ has a standard normal prior.
        return oracles.vote_fit_loss(shares(t, c, prior), labels.tolist()) + prior**2 / 2 / N

    fitted = model.temperature, model.sharpness, model.prior
    own = [share.get(int(label), 0.0) for share, label in zip(shares(*fitted), labels, strict=True)]
    assert model.nats == pytest.approx(
        np.mean([min(-math.log(max(p, 1e-300)), 7.0) for p in own]), abs=1e-6
    )
    best = loss(*fitted)
    for factor in (0.3, 0.7, 1.5, 3.0):
        assert best <= loss(model.temperature * factor, *fitted[1:]) + 1e-3
        assert best <= loss(model.temperature, model.sharpness * factor, model.prior) + 1e-3
    for prior in (0.0, model.prior / 2, model.prior + 0.3):
        assert best <= loss(*fitted[:2], prior) + 1e-3


@pytest.mark.parametrize("voters", [100, 7])
def test_other_classes_of_the_training_data_compete(world, monkeypatch, voters):
    monkeypatch.setattr(label_vote, "VOTERS", voters)
    both, labels = world
    held = labels >= 2
    part = both[held], labels[held]
    asked = Asked.held_out(*part, both[~held], labels[~held])
    found, model = asked.neighbourhood(), LabelModel(0.05, 1.7)
    shares, every = vote_shares(found, model), labels[held].tolist() + labels[~held].tolist()
    for i in range(len(part[1])):
        cosines = brute_scores(part[0], asked.searched, i, closed=True, weighted=False)[1]
        share, nearest = oracles.label_shares(cosines, cosines, every, voters, 0.05, 1.7)
        assert shares.voted[i] == pytest.approx(max(share.values()), rel=1e-9)
        assert shares.nearest[i] == pytest.approx(share[nearest], rel=1e-9)
    assert i not in found.indices[i]
    assert fit_votes(asked)["plain"].enrolled == int(held.sum())


def test_an_example_does_not_find_itself_among_its_copies():
    same = torch.nn.functional.normalize(torch.ones(4, Z, dtype=torch.float64), dim=1)
    items = torch.cat([same, -same])
    found = neighbourhood(same, torch.arange(4) % 2, items, torch.arange(8) % 2, enrolled=True)
    assert all(i not in row for i, row in enumerate(found.indices.tolist()))
    assert found.indices.shape == (4, 7)
    assert (found.votes.sizes == np.where(found.votes.labels == found.truth[:, None], 3, 4)).all()


def test_training_data_of_the_same_classes_or_without_classes_do_not_compete(world):
    both, labels = world
    for train_known in (labels[20:], None):
        asked = Asked.held_out(both[:20], labels[:20], both[20:], train_known)
        assert asked.items is None
        assert len(asked.searched) == 20


def test_without_a_finite_kappa_there_is_a_plain_vote_only(world):
    both, labels = world
    exact = sf.Embeddings(both.mean, torch.full_like(both.kappa, torch.inf))
    assert set(hold_votes(Asked(exact, labels), Asked(both, labels)).shares) == {"plain"}
    ballots = hold_votes(Asked(both, labels), Asked(both, labels))
    assert set(ballots.shares) == set(ballots.models) == {"plain", "weighted"}


def test_close_to_each_other_equal_kappas_vote_as_cosines_do(world):
    """The match score then is κ/2 times the cosine, and a constant."""
    both, labels = world
    pole = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    found = neighbourhood(torch.nn.functional.normalize(pole + 0.1 * both.mean, dim=1), labels)
    kappa = np.full(N, 1e5)
    plain = vote_shares(found, LabelModel(0.002, 2.0))
    weighted = vote_shares(found.weighted(kappa, kappa, Z), LabelModel(0.002 * 5e4, 2.0))
    np.testing.assert_array_equal(weighted.right, plain.right)
    np.testing.assert_allclose(weighted.voted, plain.voted, atol=0.02)
    np.testing.assert_allclose(weighted.nearest, plain.nearest, atol=0.02)


def test_a_label_of_the_query_alone_has_no_companion(world):
    both, labels = world
    lone = labels.clone()
    lone[5] = 77
    found = neighbourhood(both.mean, lone)
    assert np.flatnonzero(~found.companion).tolist() == [5]
    elsewhere = neighbourhood(both.mean[:6], lone[:6], both.mean[6:], lone[6:])
    assert elsewhere.truth[5] == -1
    assert not elsewhere.companion[5]
    assert not vote_shares(elsewhere, LabelModel()).right[5]
    with pytest.raises(sf.DegenerateError, match="share a label"):
        fit_votes(Asked(both, torch.arange(N)))


@pytest.fixture(scope="module")
def fitted():
    return small_learners.learner("laplace-posthoc", epochs=2).fit(small_learners.digits()[0][:150])


def test_votes_are_measured_as_other_libraries_do(fitted, generator):
    train, test = small_learners.digits()
    test, held_out = test[:80], train[150:]
    result = evaluate(fitted, test, held_out=held_out, generator=generator, ece_samples=0)
    e, h = fitted.embed(test), fitted.embed(held_out)
    ballots = hold_votes(Asked(h, held_out.labels), Asked(e, test.labels))
    wrong = ~judge(e.mean, test).hits[:, 0]
    for weighting, name in (("plain", "vote"), ("weighted", "kappa_vote")):
        shares = ballots.shares[weighting]
        assert result.values[f"{name}_right"] == pytest.approx(shares.right.mean())
        assert result.values[f"nearest_{name}_r_auroc"] == pytest.approx(
            roc_auc_score(wrong, -shares.nearest)
        )
        assert result.values[f"{name}_r_auroc"] == pytest.approx(
            roc_auc_score(~shares.right, -shares.voted)
        )
        for metric in ("right", "ausc", "r_auroc"):
            low, high = result.intervals[f"{name}_{metric}"]
            # A percentile interval of a few queries need not hold the estimate, but lies around it.
            assert abs(result.values[f"{name}_{metric}"] - (low + high) / 2) <= high - low
    for metric, (gain, low, high) in result.votes.gains.items():
        weighted = metric.replace("vote", "kappa_vote")
        assert gain == pytest.approx(result.values[weighted] - result.values[metric])
        assert abs(gain - (low + high) / 2) <= high - low
    assert len(result.votes.gains) == 5
    assert result.votes.examples == result.votes.items == len(held_out)


def test_votes_change_no_other_number_and_see_no_test_label(fitted):
    train, test = small_learners.digits()
    test, held_out = test[:80], train[150:]
    seeded = lambda: torch.Generator().manual_seed(0)
    without = evaluate(fitted, test, generator=seeded(), ece_samples=4)
    result = evaluate(fitted, test, held_out=held_out, generator=seeded(), ece_samples=4)
    assert without.votes is None
    assert {k: result.values[k] for k in without.values} == without.values
    assert {k: result.intervals[k] for k in without.intervals} == without.intervals
    shuffled = sf.Dataset(test.inputs, test.labels.flip(0))
    other = evaluate(fitted, shuffled, held_out=held_out, generator=seeded(), ece_samples=0)
    assert other.votes.temperature == result.votes.temperature
    assert other.votes.sharpness == result.votes.sharpness


def test_data_without_places_leave_the_vote_over_places_out(fitted, generator):
    train, test = small_learners.digits()
    result = evaluate(fitted, placed(test), held_out=train, generator=generator, ece_samples=0)
    assert result.votes is None
    assert not [name for name in result.values if "vote" in name]


def placed(data):
    """Put the images of a digit in one place, 100 m from the next one's."""
    spots = torch.stack([data.labels * 100.0, torch.zeros(len(data))], dim=1)
    return sf.Dataset(data.inputs, positions=spots)


@pytest.fixture
def route(world, generator):
    """The vectors of the world around four corners of a road, so near that discs overlap."""
    embeddings, labels = world
    spots = torch.rand(N, 2, generator=generator, dtype=torch.float64) * 30
    spots[:, 0] += 30 * labels
    return embeddings, spots


def brute_discs(asked, model, *, closed, weighted, voters=100, radius=25.0):
    """The neighbours of each query, nearest first, each with the share of the disc around it."""
    queries, items = asked.queries, asked.searched
    spots = (asked.known if closed else asked.item_known).tolist()
    found = []
    for i in range(len(queries)):
        scores, cosines = brute_scores(queries, items, i, closed=closed, weighted=weighted)
        found.append(oracles.disc_shares(scores, cosines, spots, voters, model.temperature, radius))
    return found, spots


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "gallery"])
@pytest.mark.parametrize("voters", [100, 7])
def test_discs_have_the_shares_of_all_items_in_them(route, monkeypatch, weighted, closed, voters):
    monkeypatch.setattr(label_vote, "VOTERS", voters)
    both, spots = route
    asked = Asked(both, spots) if closed else Asked(both[:15], spots[:15], both[15:], spots[15:])
    found, model = asked.neighbourhood(), LabelModel(0.7 if weighted else 0.05, 1.0)
    if weighted:
        found = found.weighted(*asked.kappas, Z)
    shares = vote_shares(found, model)
    wanted, item_spots = brute_discs(asked, model, closed=closed, weighted=weighted, voters=voters)
    for i, discs in enumerate(wanted):
        # The first of equal shares: they come nearest first.
        best, share = max(discs, key=lambda disc: round(disc[1], 12))
        assert shares.voted[i] == pytest.approx(share, rel=1e-9)
        assert shares.nearest[i] == pytest.approx(discs[0][1], rel=1e-9)
        assert shares.right[i] == (math.dist(item_spots[best], asked.known[i].tolist()) <= 25)
    companions = [
        sum(math.dist(p, q) <= 25 for p in item_spots) > closed for q in asked.known.tolist()
    ]
    assert found.companion.tolist() == companions


def test_of_equal_discs_the_nearer_answers():
    mean = torch.nn.functional.normalize(
        torch.tensor([[1.0, 0.1, 0], [1.0, 0.2, 0], [1.0, 0.3, 0]], dtype=torch.float64), dim=1
    )
    query = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    # The first two agree, and the first lies within the radius of the query, the second does not.
    items = torch.tensor([[0.0, 20.0], [0.0, 30.0], [500.0, 0.0]])
    found = neighbourhood(query, torch.zeros(1, 2), mean, items)
    shares = vote_shares(found, LabelModel(0.05, 1.0))
    assert shares.right.tolist() == [True]
    assert shares.voted == shares.nearest
    swapped = neighbourhood(query, torch.zeros(1, 2), mean, items[[1, 0, 2]])
    assert vote_shares(swapped, LabelModel(0.05, 1.0)).right.tolist() == [False]


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("divided", [False, True], ids=["leave-one-out", "two sides"])
def test_the_temperature_of_places_is_as_likely_as_any_other(route, weighted, divided):
    both, spots = route
    asking = np.arange(N) % 3 > 0 if divided else None
    asked = Asked.held_out(both, spots, asking=asking)
    model = fit_votes(asked)["weighted" if weighted else "plain"]
    known = asked.known.tolist()

    def nats(t):
        own, total = [], 0
        found, item_spots = brute_discs(
            asked, LabelModel(t, 1.0), closed=not divided, weighted=weighted, radius=1e-9
        )
        for query, items in zip(known, found, strict=True):
            near = [share for c, share in items if math.dist(item_spots[c], query) <= 25]
            total += len(near) > 0
            own += [min(-math.log(max(sum(near), 1e-300)), 7.0)] if near else []
        return np.mean(own), total

    best, companions = nats(model.temperature)
    assert model.sharpness == 1
    assert model.enrolled == companions
    assert best == pytest.approx(model.nats, abs=1e-6)
    for factor in (0.3, 0.5, 0.8, 1.2, 2.0, 3.0):
        assert best <= nats(model.temperature * factor)[0] + 2e-3


def test_few_places_have_the_usual_temperature(route):
    both, spots = route
    model = fit_votes(Asked(both[:8], spots[:8] * 0))["plain"]
    assert (model.temperature, model.sharpness, model.nats) == (0.05, 1.0, None)
    with pytest.raises(sf.DegenerateError, match="share a place"):
        fit_votes(Asked(both, torch.arange(N)[:, None] * torch.tensor([100.0, 0.0])))


def test_votes_over_separate_places_are_measured(fitted, generator):
    train, test = small_learners.digits()
    test, held_out = placed(test[:80]), placed(train[150:])
    asking = np.arange(len(held_out)) % 2 == 0
    result = evaluate(
        fitted, test, held_out=held_out, asking=asking, generator=generator, ece_samples=0
    )
    e, h = fitted.embed(test), fitted.embed(held_out)
    ballots = hold_votes(
        Asked.held_out(h, held_out.positions, asking=asking), Asked(e, test.positions)
    )
    wrong = ~judge(e.mean, test).hits[:, 0]
    for weighting, name in (("plain", "vote"), ("weighted", "kappa_vote")):
        shares = ballots.shares[weighting]
        assert result.values[f"{name}_right"] == pytest.approx(shares.right.mean())
        assert result.values[f"nearest_{name}_r_auroc"] == pytest.approx(
            roc_auc_score(wrong, -shares.nearest)
        )
        assert result.values[f"{name}_r_auroc"] == pytest.approx(
            roc_auc_score(~shares.right, -shares.voted)
        )
    assert result.votes.examples == asking.sum()
    assert {"recall@1", "recall@5", "recall@10", "map@5", "map@10", "ausc", "r_auroc"} <= set(
        result.values
    )


def test_the_training_data_are_embedded_once(fitted, generator, monkeypatch):
    train, test = small_learners.digits()
    train, test = placed(train[:60]), placed(test[:30])
    seen, embed = [], sf.MetricLearner.embed
    record = lambda self, inputs, **options: (seen.append(inputs), embed(self, inputs, **options))[
        1
    ]
    monkeypatch.setattr(sf.MetricLearner, "embed", record)
    evaluate(fitted, test, held_out=train, train=train, generator=generator, ece_samples=0)
    assert sum(part is train for part in seen) == 1
