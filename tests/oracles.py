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


def covariances(vectors, codes):
    """m, B and W of the two-covariance model, by loops over labels and vectors."""
    x = vectors.astype(np.float64)
    names, d = np.unique(codes), x.shape[1]
    means = np.array([x[codes == name].mean(axis=0) for name in names])
    scatter = sum(
        np.outer(row - means[list(names).index(code)], row - means[list(names).index(code)])
        for row, code in zip(x, codes, strict=True)
    )
    freedom = len(x) - len(names)
    total = np.cov(x.T, bias=True)
    within = (scatter + 10 * total) / (freedom + 20)
    part = max(0.3, 20 / (20 + freedom))
    within = (1 - part) * within + (part * np.trace(within) + 1e-4) / d * np.eye(d)
    sizes = np.array([(codes == name).sum() for name in names])
    between = np.cov(means.T) - within * (1 / sizes).mean()
    scale = max(np.trace(between) / np.trace(within), 1e-3)
    return means.mean(axis=0), 0.7 * between + 0.3 * scale * within, within


def whitening(scatter, ridge):
    """Inverse root of the scatter with a ridge, as long as the identity."""
    d = len(scatter)
    W = scipy.linalg.inv(scipy.linalg.sqrtm(scatter + ridge * np.trace(scatter) / d * np.eye(d)))
    return W * math.sqrt(d) / scipy.linalg.norm(W)


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


def gated(p, alpha, decision):
    """What is left of a decision when the input has the p-value p."""
    if p <= alpha:
        return "no_match"
    if p <= 10 * alpha and decision == "match":
        return "review"
    return decision


def stage_statistics_oracle(output, channels=None, positions=None, parts=0, deviations=True):
    """Mean and population standard deviation over positions, channel by channel; a vector as it is.

    With ``parts``, the means over the rectangles of a grid of a map, if it is as large as that.

    ``channels`` and ``positions`` list the entries that are looked at, all by default; for a map, positions
    are (rows, columns).
    """
    if output.ndim == 2:
        return (output[:, channels] if channels is not None else output).double()
    if output.ndim == 4 and 0 < parts <= min(output.shape[2:]):
        edges = lambda side: [
            (math.floor(i * side / parts), math.ceil((i + 1) * side / parts)) for i in range(parts)
        ]
        grid = [
            [
                float(channel[a:b, c:d].double().mean())
                for channel in image
                for a, b in edges(image.shape[1])
                for c, d in edges(image.shape[2])
            ]
            for image in output
        ]
        rest = stage_statistics_oracle(output, channels, positions)
        return torch.cat([rest, torch.tensor(grid, dtype=torch.float64)], dim=1)
    if output.ndim == 3:
        output = output.transpose(1, 2)[..., None]
        positions = None if positions is None else (positions, [0])
    if channels is not None:
        output = output[:, channels]
    if positions is not None:
        output = output[:, :, positions[0]][:, :, :, positions[1]]
    flat = output.double().flatten(2)
    if not deviations:
        return torch.mean(flat, 2)
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
