"""Slow and obvious definitions that the fast code must equal. Nothing of surefind is imported here."""

import math

import mpmath
import numpy as np
import scipy.linalg
import scipy.stats
import torch
from torch.func import hessian, jacrev


def normalize(x):
    return x / x.norm(dim=-1, keepdim=True)


def class_kind(labels):
    """+1 same, -1 different, 0 self, for each ordered pair."""
    n = len(labels)
    kind = torch.zeros(n, n, dtype=torch.int64)
    for i in range(n):
        for j in range(n):
            if i != j:
                kind[i, j] = 1 if labels[i] == labels[j] else -1
    return kind


def position_kind(coordinates, inner, outer):
    n = len(coordinates)
    kind = torch.zeros(n, n, dtype=torch.int64)
    for i in range(n):
        for j in range(n):
            distance = float((coordinates[i] - coordinates[j]).norm())
            if i != j and distance <= inner:
                kind[i, j] = 1
            elif i != j and distance > outer:
                kind[i, j] = -1
    return kind


def listed_kind(pairs, n):
    kind = torch.zeros(n, n, dtype=torch.int64)
    for i, j, same in pairs:
        kind[i, j] = kind[j, i] = 1 if same else -1
    return kind


def pair_targets(kind, u, margin, weight=0.5):
    """y_ij by its definition."""
    n = len(u)
    y = torch.zeros(n, n, dtype=u.dtype)
    positives, negatives = int((kind == 1).sum()), int((kind == -1).sum())
    for i in range(n):
        for j in range(n):
            if kind[i, j] == 1:
                y[i, j] = 2 * (1 - weight) / positives
            elif kind[i, j] == -1 and float(((u[i] - u[j]) ** 2).sum()) <= margin:
                y[i, j] = -2 * weight / negatives
    return y


def contrastive_loss(kind, u, margin, weight=0.5):
    same, different = [], []
    for i in range(len(u)):
        for j in range(len(u)):
            squared = ((u[i] - u[j]) ** 2).sum()
            if kind[i, j] == 1:
                same.append(squared)
            elif kind[i, j] == -1:
                different.append((margin - squared).clamp(min=0))
    loss = torch.zeros((), dtype=u.dtype)
    if same:
        loss = loss + (1 - weight) * torch.stack(same).mean()
    if different:
        loss = loss + weight * torch.stack(different).mean()
    return loss


def unsquared_loss(kind, u, margin):
    """The loss of distances, each mean over the pairs that have a loss."""
    same, different = [], []
    for i in range(len(u)):
        for j in range(len(u)):
            distance = ((u[i] - u[j]) ** 2).sum().sqrt()
            if kind[i, j] == 1:
                same.append(distance)
            elif kind[i, j] == -1 and float(distance.detach()) < margin:
                different.append(margin - distance)
    return sum(torch.stack(terms).mean() / 2 for terms in (same, different) if terms)


def gauss_newton(embed, params, inputs, targets, distance, approximation):
    """The Gauss-Newton matrix, ordered pair by ordered pair: Jᵀ H J with autograd's J and H.

    ``embed(params, x)`` maps one input to its output before normalisation; params is a flat vector.
    """
    if distance == "euclidean":
        network = lambda p, x: normalize(embed(p, x))
        pair_loss = lambda a, b, y: 0.5 * y * ((a - b) ** 2).sum()
    else:
        network = embed
        pair_loss = lambda a, b, y: 0.5 * y * ((normalize(a) - normalize(b)) ** 2).sum()
    outputs = [network(params, x) for x in inputs]
    jacobians = [jacrev(network)(params, x) for x in inputs]
    z = len(outputs[0])
    total = torch.zeros(len(params), len(params), dtype=params.dtype)
    for i in range(len(inputs)):
        for j in range(len(inputs)):
            y = targets[i, j]
            if y == 0 or (approximation == "positive" and y < 0):
                continue
            both = lambda v, y=y: pair_loss(v[:z], v[z:], y)
            H = hessian(both)(torch.cat([outputs[i], outputs[j]]))
            if approximation == "fixed":
                H[:z, z:] = 0
                H[z:, :z] = 0
            J = torch.cat([jacobians[i], jacobians[j]])
            total += J.T @ H @ J
    return total


def head_gauss_newton(weights, features, targets, distance, approximation):
    z, d = weights.shape
    embed = lambda p, h: p.view(z, d) @ h
    return gauss_newton(embed, weights.flatten(), features, targets, distance, approximation)


def positive_scatter(X, kind):
    """Mean of (h_i - h_j)(h_i - h_j)ᵀ over the unordered positive pairs of unit rows."""
    h = X / np.sqrt((X**2).sum(1, keepdims=True))
    terms = [
        np.outer(h[i] - h[j], h[i] - h[j])
        for i in range(len(h))
        for j in range(i)
        if kind[i, j] == 1
    ]
    return np.mean(terms, axis=0)


def whitening(scatter, ridge):
    """Inverse root of the scatter with a ridge, at the scale where the mean eigenvalue below it is one."""
    d = len(scatter)
    shrunk = scatter + ridge * np.trace(scatter) / d * np.eye(d)
    return scipy.linalg.inv(scipy.linalg.sqrtm(shrunk * d / np.trace(shrunk)))


def unit_mean(X):
    """Mean of the rows at unit length."""
    return np.mean([x / np.sqrt(x @ x) for x in X], axis=0)


def centred_whitening(scatter, mean, ridge):
    """The head that subtracts a mean and whitens: W (h - μ) = [W, -W μ] [h, 1]."""
    W = whitening(scatter, ridge)
    return np.c_[W, -W @ mean]


def nearest_is_alike(u, labels):
    """Whether each row's nearest other row, by angle, is of its class."""
    u = u / np.sqrt((u**2).sum(1, keepdims=True))
    alike = []
    for i in range(len(u)):
        cosine = u @ u[i]
        cosine[i] = -np.inf
        alike.append(labels[cosine.argmax()] == labels[i])
    return np.array(alike)


def spherical_first_moment(mean, variance, digits=30):
    """E[z/|z|] and 1 - |E[z/|z|]|² in high precision, from 1/|z| = (2/√π)∫ exp(-r²|z|²) dr."""
    with mpmath.workdps(digits):
        mu = [mpmath.mpf(float(m)) for m in mean]
        v = [mpmath.mpf(float(x)) for x in variance]
        unit = mpmath.sqrt(sum(m * m for m in mu) + sum(v))

        def component(k):
            def integrand(x):
                r2 = (x / unit) ** 2
                value = mu[k] / (1 + 2 * r2 * v[k])
                for m, s in zip(mu, v, strict=True):
                    value *= mpmath.exp(-r2 * m * m / (1 + 2 * r2 * s)) / mpmath.sqrt(
                        1 + 2 * r2 * s
                    )
                return value

            nodes = [0, 1, 3, 8, 40, mpmath.inf]
            return 2 / mpmath.sqrt(mpmath.pi) / unit * mpmath.quad(integrand, nodes)

        first = [component(k) for k in range(len(mu))]
        shortfall = 1 - sum(e * e for e in first)
        return [float(e) for e in first], float(shortfall)


def vmf_log_normalizer(kappa, dim):
    """log C(κ) and its derivative -I_{ν+1}/I_ν."""
    with mpmath.workdps(40):
        order = mpmath.mpf(dim) / 2 - 1
        bessel = mpmath.besseli(order, kappa)
        value = order * mpmath.log(kappa) - mpmath.mpf(dim) / 2 * mpmath.log(2 * mpmath.pi)
        slope = -mpmath.besseli(order + 1, kappa) / bessel
        return float(value - mpmath.log(bessel)), float(slope)


def von_mises_match(mean_a, kappa_a, mean_b, kappa_b):
    """log ∫ p_a p_b over the circle by a plain Riemann sum."""
    angle = torch.linspace(0, 2 * torch.pi, 200_001, dtype=torch.float64)[:-1]
    point = torch.stack([angle.cos(), angle.sin()], dim=1)
    step = float(angle[1])

    def density(mean, kappa):
        raw = (kappa * (point @ mean)).exp()
        return raw / (raw.sum() * step)

    return float((density(mean_a, kappa_a) * density(mean_b, kappa_b)).sum().mul(step).log())


def logistic_regression(x, labels, precision):
    """Multinomial logistic regression without an intercept, by scikit-learn: one row of weights a label."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=1 / precision, fit_intercept=False, tol=1e-8, max_iter=10_000)
    return model.fit(x, labels).coef_


def label_shares(scores, cosines, item_labels, voters, temperature, sharpness, prior=0.0):
    """Each label's share of the votes for one query: {label: share}, from all items, one by one.

    ``scores[j]`` is what item j votes with, ``cosines[j]`` decides whether it votes; None hides an item.
    """
    there = [j for j, cosine in enumerate(cosines) if cosine is not None]
    nearest = sorted(there, key=lambda j: -cosines[j])[:voters]
    density = {}
    for label in {item_labels[j] for j in nearest}:
        size = sum(item_labels[j] == label for j in there)
        votes = [mpmath.exp(scores[j] / temperature) for j in nearest if item_labels[j] == label]
        density[label] = size**prior * (mpmath.fsum(votes) / size) ** sharpness
    total = mpmath.fsum(density.values())
    return {label: float(d / total) for label, d in density.items()}, item_labels[nearest[0]]


def vote_fit_loss(shares, truth, most=7.0):
    """What T, c and γ of a vote are chosen by: log loss of n answers, each at most so many nats, and one
    error that was not seen, of each by its strongest rival in equal parts, as n + 1 answers count it.

    ``shares`` has {label: share} of each query.
    """
    nats = lambda share: math.inf if share == 0 else -math.log(share)
    right = [min(nats(own.get(label, 0.0)), most) for own, label in zip(shares, truth, strict=True)]
    rivals = [[s for k, s in own.items() if k != y] for own, y in zip(shares, truth, strict=True)]
    wrong = [nats(max(some)) for some in rivals if some]
    n = len(shares)
    return math.fsum(right) / n + math.fsum(wrong) / n / (n + 1)


def disc_shares(scores, cosines, places, voters, temperature, radius):
    """The share of the votes within a radius of each voter for one query: [(item, share)], nearest first.

    Items vote and are hidden as in `label_shares`.
    """
    there = [j for j, cosine in enumerate(cosines) if cosine is not None]
    nearest = sorted(there, key=lambda j: -cosines[j])[:voters]
    weight = {j: mpmath.exp(scores[j] / temperature) for j in nearest}
    total = mpmath.fsum(weight.values())
    near = lambda a, b: math.dist(places[a], places[b]) <= radius
    return [
        (c, float(mpmath.fsum(weight[g] for g in nearest if near(c, g)) / total)) for c in nearest
    ]


def gated(p, alpha, decision):
    """What is left of a decision when the input has the p-value p."""
    if p <= alpha:
        return "no_match"
    if p <= 10 * alpha and decision == "match":
        return "review"
    return decision


def stage_statistics_oracle(output, channels=None, positions=None):
    """Mean and population standard deviation over positions, channel by channel; a vector as it is.

    ``channels`` and ``positions`` list the entries that are looked at, all by default; for a map, positions
    are (rows, columns).
    """
    if output.ndim == 2:
        return output[:, channels] if channels is not None else output
    if output.ndim == 3:
        output = output.transpose(1, 2)[..., None]
        positions = None if positions is None else (positions, [0])
    if channels is not None:
        output = output[:, channels]
    if positions is not None:
        output = output[:, :, positions[0]][:, :, :, positions[1]]
    flat = output.double().flatten(2)
    return torch.cat([torch.mean(flat, 2), torch.std(flat, 2, correction=0)], dim=1)


def local_outlier_factor(fitted, references, queries, nearest, shrinkage, most, farthest):
    """Mean distance to the nearest references over their mean distance to their own, after whitening.

    The whitening is that of ``fitted``: standardise with a little of the typical spread added to each, hold
    within ``farthest``, shrink correlations towards none, keep the ``most`` widest principal directions.
    """
    centre = np.array([np.mean(column) for column in fitted.T])
    spread = np.array([np.std(column, ddof=1) for column in fitted.T])
    scale = spread + 0.01 * math.sqrt(np.mean(spread**2)) + 1e-12
    standard = lambda v: np.clip((v - centre) / scale, -farthest, farthest)
    x = standard(fitted)
    correlation = (1 - shrinkage) * (x.T @ x) / len(x) + shrinkage * np.eye(x.shape[1])
    variance, vectors = np.linalg.eigh(correlation)
    widest = np.argsort(variance)[::-1][:most]
    whiten = lambda v: standard(v) @ vectors[:, widest] / np.sqrt(variance[widest])
    points = whiten(references)

    def mean_distance(point, others):
        return np.mean(np.sort([math.dist(point, other) for other in others])[:nearest])

    own = [mean_distance(p, np.delete(points, i, axis=0)) for i, p in enumerate(points)]
    factors = []
    for query in whiten(queries):
        who = np.argsort([math.dist(query, p) for p in points])[:nearest]
        factors.append(mean_distance(query, points) / np.mean([own[i] for i in who]))
    return np.array(factors)


def clopper_pearson(k, n, confidence):
    """Upper confidence bound of a probability after k of n."""
    return 1.0 if k == n else scipy.stats.beta.ppf(confidence, k + 1, n - k)


def garwood(k, confidence):
    """Upper confidence bound of the mean of a Poisson count k."""
    return scipy.stats.chi2.ppf(confidence, 2 * (k + 1)) / 2


def at_least(known, score):
    """How many known scores are at least a score."""
    return sum(1 for s in known if s >= score)


def conformal_p_values(reference, live, ties):
    """p-value of each live value among all values before it, ties broken at random."""
    bag, found = list(reference), []
    for value, u in zip(live, ties, strict=True):
        below = sum(1 for other in bag if other < value)
        same = sum(1 for other in bag if other == value)
        found.append((below + u * (same + 1)) / (len(bag) + 1))
        bag.append(value)
    return found


def betting_capital(paid, weights):
    """Capital of each bet after its payments, entered with a weight before each of them.

    ``paid`` has what each query pays to each bet; what did not enter yet is not counted.
    """
    bets = len(paid[0])
    capital = [0.0] * bets
    for b in range(bets):
        for start in range(len(paid)):
            capital[b] += weights[start] * math.prod(row[b] for row in paid[start:])
    return capital


def likeliest_start(payments):
    """Where the product of all later payments is largest."""
    return max(range(len(payments)), key=lambda start: (math.prod(payments[start:]), start))


def neighbour_posterior(
    scores, labels, counts, *, temperature, sharpness, prior, none_level, none_slope
):
    """P(label | not none) of the labels of one query's neighbours, the nearest first, and P(none)."""
    size = [1 if label is None or counts is None else counts[label] for label in labels]
    neighbours = [*zip(scores, labels, size, strict=True)]
    if counts is None or sum(counts.values()) > len(labels):
        neighbours.append((scores[-1], None, size[-1]))  # stands for those that were not returned
    groups = {}
    for place, (score, label, n) in enumerate(neighbours):
        # An item without a label is a label of its own.
        groups.setdefault(("alone", place) if label is None else label, []).append((score, n))
    density, weight = {}, {}
    for label, votes in groups.items():
        n = votes[0][1]
        density[label] = math.log(math.fsum(math.exp(m / temperature) for m, _ in votes) / n)
        weight[label] = n**prior * math.exp(sharpness * density[label])
    named = {x: weight[x] / math.fsum(weight.values()) for x in groups if not isinstance(x, tuple)}
    best = max((density[x] for x in named), default=-math.inf)
    return named, 1 / (1 + math.exp(none_slope * (best - none_level)))


def neighbour_loss(rows, labels, truth, temperature, sharpness, *, usual):
    """What T and c are chosen by: nats of the true label, one error more, and distance from the usual."""
    n, seen, unseen = len(truth), 0.0, 0.0
    votes = {"temperature": temperature, "sharpness": sharpness, "prior": 0.0}
    for scores, names, true in zip(rows, labels, truth, strict=True):
        shares, _ = neighbour_posterior(scores, names, None, **votes, none_level=0, none_slope=0)
        seen += min(-math.log(max(shares.get(true, 0.0), 1e-300)), 7.0)
        rivals = [p for label, p in shares.items() if label != true]
        unseen -= math.log(max(*rivals, 1 - math.fsum(shares.values()), 1e-300))
    away = math.log(temperature / usual[0]) ** 2 + math.log(sharpness / usual[1]) ** 2
    return seen / n + unseen / n / (n + 1) + 1e-4 * away
