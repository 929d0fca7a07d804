"""The short pages of results: one question each, with an answer, a figure and a small table.

All of it is computed from result files; sets, methods and measurements without a result are left out.
A row is a set, or a set by another protocol. Numbers are means over seeds; which is best, and what does not
differ from it, is decided as in the full tables (`surefind.paper.tables`), over methods and
baselines together. A free baseline is an uncertainty that needs no training beyond the point estimate's.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from result_figures import Dots, dot_chart, panel_chart

from surefind.paper.figures import line_styles
from surefind.paper.published import LEAST_GAP, PAPER
from surefind.paper.results import Result, Results, ResultSet
from surefind.paper.tables import Score, compare, number_text
from surefind.paper.vocabulary import (
    DATASETS,
    DISTANCE_BASELINES,
    METHODS,
    RETRIEVAL,
    base_set,
    dataset_title,
    kind_of,
    method_title,
    metric_of,
)

POINT, POSTHOC, ONLINE = "deterministic", "laplace-posthoc", "laplace-online"
OTHERS = tuple(m for m in METHODS if m not in (POINT, POSTHOC, ONLINE))
STAND_INS = {
    "nearest-distance": {"auroc": "nearest_distance_auroc"},
    "novelty": {"auroc": "novelty_auroc"},
    "knn-vote": {"ausc": "nearest_vote_ausc"},
}
"""What post-hoc LAM's result, of the same network, says of free baselines without a result of their own."""
COSTS = {
    "curvature, 128 images, 9216 → 3": (
        "head 128, 9216→3, euclidean fixed",
        "jacobians 128, 9216→3, euclidean fixed",
    ),
    "the same with all its terms": (
        "head 128, 9216→3, euclidean full",
        "jacobians 128, 9216→3, euclidean full",
    ),
    "κ of 1,000 inputs, 2048 → 2048": ("predict 1000, 2048→2048", "sampled 1000, 2048→2048"),
}
"""Cases of benchmarks/core.py: ours, and what the literature does."""
READING = (
    "**Bold**: best of the row; ≈ not significantly different from it. ± is the standard deviation over "
    "seeds; a number without it is of one seed. In brackets: the paper's number, where it has one. "
    "What is the best of several was chosen by these very numbers."
)
FREE = (
    "A free baseline needs the point estimate's embeddings and features, and no further training."
)
BEHIND = "[All methods and metrics, and why numbers differ from the paper's](tables.md)."


@dataclass(frozen=True)
class Page:
    """One question.

    Attributes:
        name: The file's, without its ending.
        title: Its heading.
        question: In one sentence.
        headline: The answer in one sentence.
        answer: The rest of it.
        svg: The figure.
        caption: What the figure shows.
        table: A few rows, in Markdown.
        notes: How to read the table, and where more is.
    """

    name: str
    title: str
    question: str
    headline: str
    answer: tuple[str, ...]
    svg: str
    caption: str
    table: str
    notes: str

    @property
    def markdown(self) -> str:
        """The page; its figure is a file beside it."""
        parts = (
            f"# {self.title}",
            f"_{self.question}_",
            " ".join([self.headline, *self.answer]),
            f"![{self.caption}]({self.name}.svg)",
            self.caption,
            self.table,
            self.notes,
        )
        return "\n\n".join(filter(None, parts)) + "\n"


def result_pages(results: Results) -> list[Page]:
    """Compose the pages that there are results for.

    Args:
        results: From `read_results`; its folder also has the results of benchmarks of cost and decisions.

    Returns:
        Retrieval, out-of-distribution detection, wrong answers, calibration and cost.
    """
    parts = in_order(results)
    made = (_retrieval(parts), _ood(parts), _wrong(parts), _calibration(parts, results.folder))
    return [page for page in (*made, _cost(parts, results.folder)) if page is not None]


def in_order(results: Results) -> list[ResultSet]:
    """Sort sets as the vocabulary does, each followed by its other protocols; unknown ones come last."""
    place = {name: i for i, name in enumerate(DATASETS)}
    return sorted(results.sets, key=lambda s: (place.get(base_set(s.name), len(place)), s.name))


def summary_table(results: Results) -> str:
    """Compose the README's five rows: a question each, a column for each of the paper's sets."""
    parts: dict[str, ResultSet] = {}
    for part in sorted(in_order(results), key=_preference):
        if base_set(part.name) in PAPER.values:
            parts.setdefault(base_set(part.name), part)
    shown = in_order(Results(results.folder, tuple(parts.values())))
    rows: dict[str, Callable[[ResultSet], str]] = {
        "[retrieval](docs/results/retrieval.md): recall@1": partial(_own, metric="recall@1"),
        "[OOD detection](docs/results/ood.md): AUROC": partial(_own_and_free, metric="auroc"),
        "[wrong answers](docs/results/wrong-answers.md): AUSC": partial(
            _own_and_free, metric="ausc"
        ),
        "[calibration](docs/results/calibration.md): ECE, lower is better": partial(
            _own, metric="ece"
        ),
        "[cost](docs/results/cost.md): training on two cores": lambda part: _duration(
            _training(part).get(POSTHOC)
        ),
    }
    lines = [[row, *(cell(part) for part in shown)] for row, cell in rows.items()]
    return _table(["", *(short_title(part.name) for part in shown)], lines)


def _preference(part: ResultSet) -> tuple[bool, ...]:
    """Prefer what has post-hoc LAM, the set's own protocol, the paper's backbone, one trained in part."""
    return (
        POSTHOC not in part.by_method("method"),
        part.name != base_set(part.name),
        "resnet50" not in part.name,
        "-last" not in part.name,
    )


def short_title(name: str) -> str:
    """Return a set's title for use in a sentence: its protocol in brackets."""
    title, base = dataset_title(name), dataset_title(base_set(name))
    return title if title == base else f"{base} ({title.removeprefix(base + ', ')})"


def scores_of(part: ResultSet, metric: str) -> dict[str, Score]:
    """Score the methods of a set, and the free baselines if they do not borrow the metric, together."""
    methods = dict(part.by_method("method", "baseline"))
    if metric_of(metric).group == RETRIEVAL:
        methods = part.by_method("method")
    for name, borrowed in STAND_INS.items():
        found = [_stand_in(r, name, borrowed) for r in methods.get(POSTHOC, ())]
        having = tuple(r for r in found if metric in r.values)
        if name not in methods and having and metric in borrowed:
            methods[name] = having
    return compare(methods, metric_of(metric))


def _stand_in(result: Result, method: str, borrowed: Mapping[str, str]) -> Result:
    values, intervals = (
        {own: named[theirs] for own, theirs in borrowed.items() if theirs in named}
        for named in (result.values, result.intervals)
    )
    return result.model_copy(
        update={"method": method, "values": values, "intervals": intervals, "curves": {}}
    )


def best_of(scores: Mapping[str, Score], metric: str, among: Iterable[str]) -> str | None:
    """Return the best of some methods: one that ranks first, or else the one of the best mean."""
    having = [m for m in among if m in scores]
    first = [m for m in having if scores[m].rank == "best"]
    sign = -1 if metric_of(metric).better == "lower" else 1
    return max(first or having, key=lambda m: sign * scores[m].mean, default=None)


def _free(scores: Mapping[str, Score]) -> list[str]:
    return [m for m in scores if m in DISTANCE_BASELINES]


def _methods(scores: Mapping[str, Score]) -> list[str]:
    return [m for m in scores if kind_of(m) == "method"]


def _paper(part: ResultSet, method: str, metric: str) -> float | None:
    number = PAPER.values.get(base_set(part.name), {}).get(method, {}).get(metric)
    return None if number is None else number[0]


def _cell(part: ResultSet, metric: str, method: str | None, *, named: bool = False) -> str:
    """Return a method's number with its marks, the paper's in brackets."""
    scores = scores_of(part, metric)
    if method is None or method not in scores:
        return "–"
    score = scores[method]
    text = " ".join(number_text(score.mean, score.sd)).strip()
    text = f"**{text}**" if score.rank == "best" and len(scores) > 1 else text
    text = f"≈ {text}" if score.verdict == "alike" else text
    theirs = _paper(part, method, metric)
    text += "" if theirs is None else f" ({theirs:.2f})"
    return f"{method_title(method)} {text}" if named else text


def _own(part: ResultSet, metric: str) -> str:
    """Return post-hoc LAM's number and the paper's."""
    score, theirs = scores_of(part, metric).get(POSTHOC), _paper(part, POSTHOC, metric)
    if score is None:
        return "–"
    return f"{score.mean:.3f}" + ("" if theirs is None else f" ({theirs:.2f})")


def _own_and_free(part: ResultSet, metric: str) -> str:
    """Return post-hoc LAM's number and the best free baseline's."""
    scores = scores_of(part, metric)
    free = best_of(scores, metric, _free(scores))
    more = "" if free is None else f"; {method_title(free)} {scores[free].mean:.3f}"
    return _own(part, metric) + more


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rule = ["---", *["--:"] * (len(heads) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, rule, *lines))


def _listing(items: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(items[:-1]), *items[-1:]]))


def _span(values: Mapping[str, float]) -> str:
    """Return the smallest and the largest of numbers, with their names."""
    low, high = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
    return " to ".join(dict.fromkeys(f"{values[name]:.3f} on {name}" for name in (low, high)))


def _range(values: Iterable[float]) -> str:
    """Return the smallest and the largest of differences, once if they read alike."""
    known = list(values)
    return " to ".join(dict.fromkeys(f"{v:+.3f}" for v in (min(known), max(known))))


def _against_paper(parts: Sequence[ResultSet], metric: str) -> str:
    """Count where ours is better or worse than the paper's, by our own protocol and by its recipe."""
    own, recipe = (_gaps(parts, metric, recipe=recipe) for recipe in (False, True))
    said = []
    if own:
        said.append(
            f"On networks trained whole, as the paper's were, ours is {_above_and_below(own, metric)}; "
            "settings and definitions differ."
        )
    if recipe:
        said.append(
            f"Trained and measured by the paper's recipe, ours is {_above_and_below(recipe, metric)}."
        )
    return " ".join(said)


def _gaps(parts: Sequence[ResultSet], metric: str, *, recipe: bool) -> list[float]:
    """Return how far networks trained whole are above the paper's numbers, by a recipe or without."""
    return [
        score.mean - theirs
        for part in parts
        for method, score in scores_of(part, metric).items()
        if not _frozen(part)
        and bool(part.results[0].protocol.get("recipe")) == recipe
        and (theirs := _paper(part, method, metric)) is not None
    ]


def _above_and_below(gaps: Sequence[float], metric: str) -> str:
    sign = -1 if metric_of(metric).better == "lower" else 1
    better, worse = (sum(s * sign * g > LEAST_GAP for g in gaps) for s in (1, -1))
    return f"better in {better} of {len(gaps)} numbers that it has too and worse in {worse}"


def _reading(parts: Sequence[ResultSet], metric: str) -> str:
    return " ".join(filter(None, [READING, _comparable(parts, metric)]))


def _frozen(part: ResultSet) -> bool:
    return bool(part.results[0].protocol.get("frozen"))


def _comparable(parts: Sequence[ResultSet], metric: str) -> str:
    """Say what must be known before numbers in brackets are compared; may be empty."""
    known = [p for p in parts if any(_paper(p, m, metric) is not None for m in METHODS)]
    said = []
    if any(map(_frozen, known)):
        said.append(
            "The paper trained whole networks: beside frozen ones its numbers are for orientation."
        )
    if metric_of(metric).group == RETRIEVAL and any(base_set(p.name) == "lfw" for p in known):
        said.append("On LFW it counts a query without a match as wrong, which ours leaves out.")
    return " ".join(said)


def _free_wins(parts: Sequence[ResultSet], metric: str) -> str:
    """Say on how many sets a free baseline is better than every method's own uncertainty, and which."""
    wins: Counter[str | None] = Counter()
    both = alike = 0
    for part in parts:
        scores = scores_of(part, metric)
        free, method = (best_of(scores, metric, group(scores)) for group in (_free, _methods))
        if free is None or method is None:
            continue
        both += 1
        if scores[method].rank != "best" and best_of(scores, metric, [method, free]) == free:
            wins[free] += 1
            alike += scores[method].verdict == "alike"
    if not wins:
        return (
            f"No free baseline is better than the best method on any of {both} sets."
            if both
            else ""
        )
    unsure = f" (not significantly on {alike})" if alike else ""
    return (
        f"**A free baseline is better than every method's own uncertainty on {wins.total()} of {both} "
        f"sets**{unsure}: {_counted(wins)}."
    )


def _counted(best: "Counter[str | None]") -> str:
    """Name methods with the number of sets that they are best on."""
    return _listing([f"{method_title(m)} on {n}" for m, n in best.most_common() if m is not None])


def _dots(
    parts: Sequence[ResultSet],
    metric: str,
    methods: Sequence[str],
    label: Callable[[ResultSet], str],
) -> list[Dots]:
    looks, found = line_styles(methods), []
    scores = {part.name: scores_of(part, metric) for part in parts}
    for method in methods:
        values, published = {}, {}
        for part in parts:
            if method in scores[part.name]:
                values[label(part)] = scores[part.name][method].mean
                if (theirs := _paper(part, method, metric)) is not None:
                    published[label(part)] = theirs
        if values:
            found.append(Dots(method_title(method), looks[method], values, published))
    return found


def _spaced(label: str) -> str:
    return label.replace("\n", ", ")


def _in_words(series: Sequence[Dots]) -> str:
    return "; ".join(
        f"{one.label}: {', '.join(f'{_spaced(row)} {value:.3g}' for row, value in one.values.items())}"
        for one in series
    )


def _having(parts: Sequence[ResultSet], metric: str) -> list[ResultSet]:
    return [part for part in parts if _methods(scores_of(part, metric))]


def _means(parts: Sequence[ResultSet], metric: str, method: str) -> dict[str, float]:
    """Return a method's mean by the set's title."""
    found = {part.name: scores_of(part, metric).get(method) for part in parts}
    return {short_title(name): score.mean for name, score in found.items() if score is not None}


def _compared(parts: Sequence[ResultSet], metric: str, *, point: bool, free: bool) -> str:
    """Compose the table of a metric: LAM, the best of the other methods, the best free baseline."""
    own = [*([POINT] if point else []), POSTHOC, ONLINE]
    heads = ["", *map(method_title, own), "best other method"]
    lines = []
    for part in parts:
        scores = scores_of(part, metric)
        known = {*own, *DISTANCE_BASELINES, POINT}
        other = best_of(scores, metric, [m for m in scores if m not in known])
        cells = [_cell(part, metric, m) for m in own]
        cells.append(_cell(part, metric, other, named=True))
        if free:
            cells.append(_cell(part, metric, best_of(scores, metric, _free(scores)), named=True))
        lines.append([short_title(part.name), *cells])
    return _table([*heads, *(["best free baseline"] if free else [])], lines)


def _retrieval(parts: Sequence[ResultSet]) -> Page | None:
    metric, parts = "recall@1", _having(parts, "recall@1")
    if not parts:
        return None
    point = _means(parts, metric, POINT)
    gaps = {
        method: {s: v - point[s] for s, v in _means(parts, metric, method).items() if s in point}
        for method in (POSTHOC, ONLINE)
    }
    headline = "Recall is a matter of the encoder and its training, not of κ."
    if gaps[POSTHOC]:
        most = max(map(abs, gaps[POSTHOC].values()))
        same = (
            " retrieves like the encoder that it is fitted to: its" if most <= LEAST_GAP else "'s"
        )
        headline = (
            f"Post-hoc LAM{same} recall@1 differs from the point estimate's by at most {most:.3f} on "
            f"{len(gaps[POSTHOC])} sets."
        )
    answer = []
    if gaps[ONLINE]:
        answer.append(f"Online LAM's differs by {_range(gaps[ONLINE].values())}.")
    scored = [scores for part in parts if len(scores := scores_of(part, metric)) > 1]
    best = Counter(best_of(scores, metric, scores) for scores in scored)
    answer.append(f"The best is {_counted(best)}." if best else "")
    series = _dots(parts, metric, list(METHODS), _label)
    return Page(
        "retrieval",
        "Retrieval",
        "Is the nearest item of the right class, person or place?",
        headline,
        (*answer, _against_paper(parts, metric)),
        dot_chart(series, "recall@1", f"recall@1 by set. {_in_words(series)}"),
        "recall@1 of each method; a ring is the paper's number of the same method.",
        _compared(parts, metric, point=True, free=False),
        "recall@1: the share of queries whose nearest item is relevant. "
        f"{_reading(parts, metric)} {BEHIND}",
    )


def _label(part: ResultSet) -> str:
    """Return a set's title in two lines, the protocol below it."""
    base = dataset_title(base_set(part.name))
    return f"{base}\n{dataset_title(part.name).removeprefix(base).removeprefix(', ')}".strip()


def _ood_label(part: ResultSet) -> str:
    """Return the same with what is to be detected."""
    base, *protocol = _label(part).split("\n")
    ood = part.results[0].protocol.get("ood")
    return "\n".join([base + (f" → {dataset_title(ood[0])}" if ood else ""), *protocol])


def _ood(parts: Sequence[ResultSet]) -> Page | None:
    metric, parts = "auroc", _having(parts, "auroc")
    if not parts:
        return None
    own = _means(parts, metric, POSTHOC)
    headline = (
        f"κ of post-hoc LAM tells OOD inputs from known ones with an AUROC of {_span(own)}."
        if own
        else ""
    )
    methods = (POSTHOC, ONLINE, *OTHERS, "nearest-distance", "knn-vote", "mahalanobis", "novelty")
    series = _dots(parts, metric, methods, _ood_label)
    return Page(
        "ood",
        "Out-of-distribution inputs",
        "Does the model notice inputs that are not of the kind it was trained on?",
        " ".join(filter(None, [headline, _free_wins(parts, metric)])),
        (_lowest_novelty(parts), _against_paper(parts, metric)),
        dot_chart(
            series, "AUROC (dotted: chance)", f"AUROC by set. {_in_words(series)}", chance=0.5
        ),
        "AUROC of each method's uncertainty (colours) and of free baselines (grey) on the first OOD "
        "set; a ring is the paper's number of the same method.",
        _compared(parts, metric, point=False, free=True),
        "AUROC: the probability that an OOD input is more uncertain than a known one; 0.5 is chance. "
        f"{_reading(parts, metric)} {FREE} The full tables have more OOD sets, near and far. {BEHIND}",
    )


def _lowest_novelty(parts: Sequence[ResultSet]) -> str:
    """Name the OOD set that novelty detects worst, over all sets."""
    found: dict[tuple[str, str], list[float]] = {}
    for part in parts:
        methods = part.by_method("method", "baseline")
        name, prefix = ("novelty", "") if "novelty" in methods else (POSTHOC, "novelty_")
        for result in methods.get(name, ()):
            for other, ood in result.ood.items():
                if (value := ood.values.get(f"{prefix}auroc")) is not None:
                    found.setdefault((part.name, other), []).append(value)
    if len(found) < 2:
        return ""
    means = {pair: float(np.mean(values)) for pair, values in found.items()}
    (where, other), low = min(means.items(), key=lambda pair: pair[1])
    above = sum(value >= 0.9 for value in means.values())
    return (
        f"Novelty reaches 0.9 on {above} of {len(means)} pairs of a set and OOD inputs; its lowest is "
        f"{low:.3f}, {dataset_title(other)} against {short_title(where)}."
    )


def _panels(
    parts: Sequence[ResultSet], kind: str, methods: Sequence[str]
) -> dict[str, dict[str, tuple[Sequence[float], Sequence[float]]]]:
    """Gather curves of one seed by set and method."""
    panels = {}
    for part in parts:
        found = part.by_method("method", "baseline")
        curves = {
            method_title(m): (curve.x, curve.y)
            for m in methods
            if m in found and (curve := found[m][0].curves.get(kind))
        }
        if curves:
            panels[_label(part)] = curves
    return panels


def _panel_figure(
    parts: Sequence[ResultSet], kind: str, metric: str, methods: Sequence[str]
) -> str:
    looks = {method_title(m): look for m, look in line_styles(methods).items()}
    series = _dots(parts, metric, methods, _label)
    alt = f"{metric_of(metric).title} by set. {_in_words(series)}"
    return panel_chart(kind, _panels(parts, kind, methods), looks, alt)


def _wrong(parts: Sequence[ResultSet]) -> Page | None:
    metric, parts = "ausc", _having(parts, "ausc")
    drawn = (POSTHOC, ONLINE, "pfe", "nearest-distance", "knn-vote")
    if not _panels(parts, "sparsification", drawn):
        return None
    lines, gains = [], {}
    for part in parts:
        voted = _voted(part)
        lines.append(", ".join(f"{np.mean(v):.3f}" for v in voted[:2]) if voted else "–")
        if voted:
            gains[short_title(part.name)] = float(np.mean(voted[2]))
    own = _means(parts, metric, POSTHOC)
    headline = (
        f"Dropping the queries that κ of post-hoc LAM doubts gives an AUSC of {_span(own)}."
        if own
        else ""
    )
    answer = []
    if sampled := _means(parts, "agreement_ausc", POSTHOC):
        answer.append(
            f"By the disagreement of its sampled neighbours (AUSC*) it is {_span(sampled)}."
        )
    if gains:
        answer.append(
            "Answering with the label that the 100 nearest vote for, instead of the nearest item's, "
            f"changes the share of right answers by {_range(gains.values())}."
        )
    table = _compared(parts, metric, point=False, free=True).splitlines()
    table[0] += " voted label: right, AUSC |"
    table[1] += " --: |"
    table[2:] = [f"{row} {cell} |" for row, cell in zip(table[2:], lines, strict=True)]
    return Page(
        "wrong-answers",
        "Wrong answers",
        "Are the answers that the model doubts the wrong ones?",
        " ".join(filter(None, [headline, _free_wins(parts, metric)])),
        (*answer, _against_paper(parts, metric)),
        _panel_figure(parts, "sparsification", metric, drawn),
        "Accuracy of the nearest item as the most uncertain queries are dropped: the earlier it rises, the "
        "better. One seed each; grey lines are free baselines.",
        "\n".join(table),
        "AUSC: the mean accuracy of the curve above; recall@1 if doubts were random. "
        f"{_reading(parts, metric)} {FREE} {BEHIND}",
    )


def _voted(part: ResultSet) -> tuple[list[float], list[float], list[float]] | None:
    """Return by seed the share of right voted labels, their AUSC, and that share less recall@1."""
    found = part.by_method("method")
    for method in (POINT, POSTHOC):
        having = [r.values for r in found.get(method, ()) if "vote_ausc" in r.values]
        if having:
            right, ausc, nearest = (
                [values[name] for values in having]
                for name in ("vote_right", "vote_ausc", "recall@1")
            )
            return right, ausc, [a - b for a, b in zip(right, nearest, strict=True)]
    return None


def _calibration(parts: Sequence[ResultSet], folder: Path) -> Page | None:
    metric, every, parts = "ece", parts, _having(parts, "ece")
    drawn = (POSTHOC, ONLINE, *OTHERS)
    if not _panels(parts, "calibration", drawn):
        return None
    own = _means(parts, metric, POSTHOC)
    headline = (
        f"The confidence of post-hoc LAM is off by an ECE of {_span(own)}."
        if own
        else "The confidence of each method is off by its ECE below."
    )
    return Page(
        "calibration",
        "Calibration",
        "Is a confidence of 90 % right in 90 of 100 cases, and are promises kept?",
        headline,
        (_false_alarms(every), _promises(folder), _against_paper(parts, metric)),
        _panel_figure(parts, "calibration", metric, drawn),
        "Accuracy of the queries of each confidence, the share of sampled embeddings that agree on the "
        "nearest item's class; on the dotted line a method is calibrated, below it is overconfident. One "
        "seed each.",
        _compared(parts, metric, point=False, free=False),
        f"ECE: the mean distance to the dotted line; lower is better. {_reading(parts, metric)} {BEHIND}",
    )


def _false_alarms(parts: Sequence[ResultSet]) -> str:
    """Say how many known inputs novelty flags, against what it promises."""
    said = []
    for percent in (1, 5):
        metric = f"false_alarms_{percent}"
        found = _means(parts, metric, POSTHOC) | _means(parts, metric, "novelty")
        if found:
            low, high = 100 * min(found.values()), 100 * max(found.values())
            kept = sum(value <= percent / 100 for value in found.values())
            said.append(
                f"at {percent} % it flags {low:.1f} % to {high:.1f} % (kept on {kept} of {len(found)} sets)"
            )
    if not said:
        return ""
    return f"Novelty promises to flag at most a share of known inputs: {_listing(said)}."


def _promises(folder: Path) -> str:
    """Say how often calibrated decisions broke their promise."""
    parts = _stored(folder, "decisions").get("parts", {})
    found = {name: p for name, p in parts.items() if name.startswith("promise, ")}
    if not found:
        return ""
    rates = [100 * p["exceeded"] for p in found.values()]
    return (
        "A gallery's promise of at most so many wrong matches, which may fail in 5 % of calibrations, "
        f"failed in {min(rates):.1f} % to {max(rates):.1f} % ([decisions](../benchmarks.md#decisions))."
    )


def _stored(folder: Path, name: str) -> dict[str, Any]:
    """Return the results of a benchmark script; empty if it has none."""
    file = folder / f"{name}.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


def _training(part: ResultSet) -> dict[str, float]:
    """Return the seconds of training by method, mean over seeds."""
    found = {}
    for method, results in part.by_method("method").items():
        spent = [sum(e.seconds for es in r.history.values() for e in es) for r in results]
        if any(spent):
            found[method] = float(np.mean([s for s in spent if s]))
    return found


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.2g} s"


def _cost(parts: Sequence[ResultSet], folder: Path) -> Page | None:
    cases = _stored(folder, "core").get("cases", {})
    timed = {
        row: (cases[ours]["seconds"], cases[other]["seconds"])
        for row, (ours, other) in COSTS.items()
        if "seconds" in cases.get(ours, {}) and "seconds" in cases.get(other, {})
    }
    trained = {part.name: spent for part in parts if (spent := _training(part))}
    if not timed or not trained:
        return None
    ratios = [theirs / ours for ours, theirs in timed.values()]
    answer = []
    if learning := _stored(folder, "learning"):
        answer.append(
            "Fitting post-hoc LAM to every pair of 60,000 images takes "
            f"{learning['posthoc_fit']['ratio']:.2f} epochs, a step of online LAM "
            f"{learning['online_step']['ratio']:.2f} times a deterministic one, embedding with κ "
            f"{learning['embedding']['ratio']:.2f} times embedding without (ResNet-50: "
            f"{learning['resnet_embedding']['ratio']:.2f})."
        )
    looks = line_styles([POSTHOC, ONLINE])
    labels = "surefind, in closed form", "a Jacobian per pair, or 100 sampled heads"
    series = [
        Dots(label, look, {row: pair[i] for row, pair in timed.items()})
        for i, (label, look) in enumerate(zip(labels, looks.values(), strict=True))
    ]
    methods = [m for m in METHODS if any(m in spent for spent in trained.values())]
    lines = [
        [short_title(name), *(_duration(spent.get(m)) for m in methods)]
        for name, spent in trained.items()
    ]
    return Page(
        "cost",
        "Cost",
        "What does it cost to know?",
        f"Curvature and κ in closed form are {min(ratios):,.0f} to {max(ratios):,.0f} times as fast as "
        "what the literature does.",
        (
            *answer,
            "A deep ensemble costs its members, in training and for every query; a free baseline costs no "
            "training.",
        ),
        dot_chart(series, "seconds", f"Seconds by task. {_in_words(series)}", logarithmic=True),
        "Seconds for the same result, on a logarithmic axis.",
        _table(["training", *map(method_title, methods)], lines),
        "Training times are means over seeds, on two cores that were shared with other work: they vary "
        "by a factor of two and more. Post-hoc LAM's is that of the point estimate, without its fit. The "
        "paper has no times. [All measurements of time and memory](../benchmarks.md).",
    )
