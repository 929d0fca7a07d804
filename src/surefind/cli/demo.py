"""`surefind demo`: an experiment on images that ship with scikit-learn, and a page to look at.

An encoder is trained on the digits 0 to 7 and fills a gallery with them; others of them, which it was not
trained on, tell novelty what is usual. Further ones, with 8s that the gallery does not hold, calibrate its
decisions. All digits are divided at random, so that queries with known digits and 8s are drawn like the
calibration's, and its guarantee is about them. It is not about the other queries: digits blurred or half
occluded, the digit 9, patches of photographs, blank images and noise.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

import surefind as sf
from surefind.checks import require
from surefind.cli.console import check_place, say, spelled, stage_progress
from surefind.cli.runs import open_run
from surefind.errors import InputError
from surefind.files import write_atomically

if TYPE_CHECKING:
    from torch import Tensor

    from surefind.learning.session import Report

MARK = ".surefind-demo"
"""Says that what is in a folder was written by the demo, which may write it anew."""
PARTS = ("gallery", "gallery.service", "images", "run")
NEW, NEVER = 8, 9
"""The digit that the gallery does not hold, and the one that is nowhere but in queries."""
KNOWN, BLURRED, OCCLUDED = "known digits", "blurred", "half occluded"
EIGHT, NINE = "the digit 8, not in the gallery", "the digit 9, never seen"
PHOTOGRAPHS, NOISE = "photographs", "blank and noise"
KINDS = (KNOWN, EIGHT, NINE, BLURRED, OCCLUDED, PHOTOGRAPHS, NOISE)
COVERED = (KNOWN, EIGHT)
"""Kinds of query that are drawn like those of the calibration."""
SHOWN = (KNOWN, EIGHT, NINE, OCCLUDED, PHOTOGRAPHS, NOISE)
"""Kinds of which the report shows a query."""
CHARTED = (KNOWN, BLURRED, OCCLUDED, NINE, PHOTOGRAPHS)
"""As many as a chart has lines that can be told apart."""
SIGNS = {"match": "✓ match", "review": "? review", "no_match": "✗ no match"}
MAX_WRONG, MAX_FALSE_ALARMS = 0.05, 0.01
TRAIN, HELD_OUT = 480, 480
"""Known digits to train on, and for novelty: of 475 or more, one beyond all but one still has p <= 1 %."""


def demo(
    out: Annotated[Path, Option(help="Folder for the page, the run and the gallery.")] = Path(
        "surefind-demo"
    ),
) -> Any:
    """See on small images what a decision with a guaranteed error rate is; a minute, no downloads.

    Example: `surefind demo`
    """
    check_place(out)
    clear_place(out)
    with stage_progress("demo") as report:
        found = run_demo(out, report)
    page = out / "report.html"
    write_page(found, page)
    say("Next, with your own images: surefind train --help")
    say("Next, with vectors that you have: surefind fit --help")
    say(f"Next, to ask it yourself in a browser: {spelled('serve', out / 'gallery')}")
    say(f"The report with figures: {page.resolve()}")
    return {"page": page.resolve(), "run": out / "run", "gallery": out / "gallery"}


def clear_place(folder: Path) -> None:
    """Make the demo's folder, or empty it of what an earlier demo left; refuse what is not the demo's."""
    folder.mkdir(parents=True, exist_ok=True)
    there = [folder / name for name in PARTS if (folder / name).exists()]
    if there and not (folder / MARK).exists():
        raise InputError(
            f"{there[0]} is there and not of a demo; give another folder with --out.", field="out"
        )
    for part in there:
        shutil.rmtree(part)
    (folder / MARK).touch()


@dataclass(frozen=True, eq=False)
class Material:
    """The digits, divided: to train, for novelty, to calibrate, and queries with their labels."""

    train: "sf.Dataset"
    held_out: "sf.Dataset"
    calibration: "sf.Dataset"
    queries: "dict[str, Tensor]"
    truth: dict[str, list[str]]


def material() -> Material:
    """Divide all digits at random: to train, for novelty, to calibrate, and queries."""
    import numpy as np
    import torch
    from torch.nn.functional import avg_pool2d

    from surefind.data.sources import load_digits
    from surefind.learning.seeds import seeded

    loaded = load_digits()
    generator = seeded(0, "demo")

    def together(*parts: "sf.Dataset") -> "sf.Dataset":
        inputs = np.concatenate([part.inputs for part in parts])
        return sf.Dataset(inputs, torch.cat([part.labels for part in parts]), name="digits")

    def shuffled(dataset: "sf.Dataset") -> "sf.Dataset":
        return dataset[torch.randperm(len(dataset), generator=generator)]

    digits = together(loaded.train, loaded.test)
    known, eights = shuffled(digits[digits.labels < NEW]), shuffled(digits[digits.labels == NEW])
    train, held_out = known[:TRAIN], known[TRAIN : TRAIN + HELD_OUT]
    rest, nine = known[TRAIN + HELD_OUT :], digits[digits.labels == NEVER]
    # A calibration needs more of them than a figure does.
    ends = len(rest) // 3, len(eights) // 3
    asked, eight = rest[: ends[0]], eights[: ends[1]]
    calibration = together(rest[ends[0] :], eights[ends[1] :])
    clean = asked.read()
    occluded = clean.clone()
    occluded[..., 4:] = 0
    size = clean.shape[1:]
    queries = {
        KNOWN: clean,
        EIGHT: eight.read(),
        NINE: nine.read(),
        BLURRED: avg_pool2d(clean, 3, stride=1, padding=1),
        OCCLUDED: occluded,
        PHOTOGRAPHS: loaded["ood"].read(),
        NOISE: torch.cat([
            torch.zeros(1, *size),
            torch.ones(1, *size),
            torch.rand(98, *size, generator=generator),
        ]),
    }
    labelled = {KNOWN: asked, BLURRED: asked, OCCLUDED: asked, EIGHT: eight, NINE: nine}
    truth = {
        kind: _names(labelled[kind]) if kind in labelled else ["no digit"] * len(images)
        for kind, images in queries.items()
    }
    return Material(train, held_out, calibration, queries, truth)


def _names(digits: "sf.Dataset") -> list[str]:
    return [str(int(label)) for label in digits.labels]


def run_demo(folder: Path, report: "Report") -> dict[str, Any]:
    """Train, build and calibrate a gallery, query it, and say what was found.

    Args:
        folder: Where the run, the gallery and its images are written.
        report: Called after each training step.

    Returns:
        By name, for the page: κ of each kind of query, the fraction of each decision, error rates of the
        matches and of all answers (for `COVERED` queries, and for all), the calibration, and a typical
        query of each kind.
    """
    import numpy as np

    from surefind.learning.seeds import seeded
    from surefind.models.networks import small_net

    digits = material()
    say(
        f"A small network is trained on {len(digits.train)} images of the digits 0 to 7, and all of its "
        f"layers become an embedding; {len(digits.held_out)} others tell novelty what is usual."
    )
    network = small_net(1, 8, 4, generator=seeded(0, "encoder"))
    learner = sf.MetricLearner(network, stop_early=True)
    learner.fit(digits.train, held_out=digits.held_out, report=report).save(folder / "run")
    asked = {kind: learner.embed(images) for kind, images in digits.queries.items()}
    kappa = {kind: e.numpy().kappa for kind, e in asked.items()}
    with filled_gallery(folder, learner, digits, learner.embed(digits.train)) as gallery:
        calibration = gallery.calibration
        assert calibration is not None
        say(f"A gallery of {len(gallery)} digits, calibrated on {len(digits.calibration)} others.")
        say(calibration.summary)
        # The demo's queries are not live ones: whoever serves its gallery starts without an alarm.
        answers = {kind: gallery.search(e, k=5, watch=False) for kind, e in asked.items()}
    say("Plain search answers every query with its nearest neighbour. What surefind decides:")
    decisions = {
        kind: {d: float(np.mean(a.decision == d)) for d in SIGNS} for kind, a in answers.items()
    }
    for kind in KINDS:
        parts = (f"{decisions[kind][d]:.0%} {d.replace('_', ' ')}" for d in SIGNS)
        say(f"  {kind}: {', '.join(parts)}; median κ {np.median(kappa[kind]):.3g}")
    wrong = {"calibrated": _wrong(answers, COVERED, digits), "all": _wrong(answers, KINDS, digits)}
    say(
        "Of known digits and 8s, which the guarantee is about, {:.1%} of the matches are wrong; of all "
        "nearest neighbours, {:.0%}.".format(*wrong["calibrated"])
    )
    say(
        "With all the other queries, which it is not about, it is {:.1%} against {:.0%}.".format(
            *wrong["all"]
        )
    )
    examples = [_example(kind, digits, answers[kind]) for kind in SHOWN]
    for one in examples:
        why = f" ({one['reason']})" if one["reason"] else ""
        say(
            f"A query ({one['kind']}): the nearest neighbour is a {one['nearest']}, at cosine "
            f"{one['score']:.2f}; {one['decision'].replace('_', ' ')}{why}."
        )
    found = {"kappa": kappa, "decisions": decisions, "wrong": wrong, "calibration": calibration}
    return found | {"examples": examples}


def filled_gallery(
    folder: Path, learner: "sf.MetricLearner", digits: Material, items: "sf.Embeddings"
) -> "sf.Gallery":
    """Fill a gallery with the training data, save their images, and calibrate it on held-out data."""
    import numpy as np

    run, images = folder / "run", folder / "images"
    gallery = sf.Gallery(path=folder / "gallery", model=open_run(run).fingerprint)
    names = _names(digits.train)
    ids = [f"digit-{i:04d}" for i in range(len(names))]
    images.mkdir(parents=True, exist_ok=True)
    pil = require("PIL.Image", "write the gallery's images")
    for id_, pixels in zip(ids, np.asarray(digits.train.inputs), strict=True):
        pil.fromarray(pixels).save(images / f"{id_}.png")
    payload = [{"path": f"{id_}.png"} for id_ in ids]
    gallery.add(items, ids=ids, labels=names, payload=payload)
    gallery.info |= {"images": str(images.resolve()), "run": str(run.resolve())}
    truth = [name if name in names else None for name in _names(digits.calibration)]
    gallery.calibrate(
        learner.embed(digits.calibration),
        truth,
        max_wrong=MAX_WRONG,
        max_false_alarms=MAX_FALSE_ALARMS,
    )
    return gallery


def _wrong(answers: Any, kinds: tuple[str, ...], digits: Material) -> tuple[float, float]:
    """Return the error rate of the matches, and of nearest neighbours, to some kinds of query."""
    import numpy as np

    matched = np.concatenate([answers[kind].decision == "match" for kind in kinds])
    truth = np.concatenate([np.array(digits.truth[kind], dtype=object) for kind in kinds])
    label = np.concatenate([answers[kind].label for kind in kinds])
    nearest = np.concatenate([answers[kind].neighbour_labels[:, 0] for kind in kinds])
    wrong = float((label != truth)[matched].mean()) if matched.any() else 0.0
    return wrong, float((nearest != truth).mean())


def _example(kind: str, digits: Material, answer: Any) -> dict[str, Any]:
    """Describe a typical query: of those with the commonest decision, the one of median probability."""
    import numpy as np

    usual = max(SIGNS, key=lambda decision: int((answer.decision == decision).sum()))
    rows = np.flatnonzero(answer.decision == usual)
    at = int(rows[np.argsort(answer.probability[rows])[len(rows) // 2]])
    reasons = answer.reasons[at]
    sure = f"{answer.probability[at]:.0%} sure" if usual == "match" else ""
    return {
        "kind": kind,
        "query": digits.queries[kind][at].numpy(),
        "nearest": str(answer.neighbour_labels[at, 0]),
        "score": float(answer.scores[at, 0]),
        "label": str(answer.label[at]),
        "decision": usual,
        "reason": reasons[0] if reasons else sure,
    }


def write_page(found: dict[str, Any], path: Path) -> None:
    """Write what was found as one HTML page, and its figure as ``kappa.svg`` next to it."""
    import numpy as np

    from surefind.evaluation import figures
    from surefind.evaluation.evaluate import kappa_histogram

    histogram = kappa_histogram({kind: 1 / found["kappa"][kind] for kind in CHARTED}, bins=36)
    figure = figures.kappa_chart(*histogram, "Distribution of κ for each kind of query")
    alt = "FNIR against FPIR over all thresholds"
    page = figures.fill_template(
        Path(__file__).with_name("demo.html.j2"),
        f=found,
        palette=figures.palette_css(),
        figure=figure,
        identification=figures.identification_chart(found["calibration"].risk_curve, alt),
        kinds=KINDS,
        nine=NINE,
        signs=SIGNS,
        max_wrong=MAX_WRONG,
        # Dark ink on white ground.
        strip=lambda images: figures.image_strip((255 * (1 - images)).astype(np.uint8)),
    )
    write_atomically(path, page)
    figures.write_figure(path.with_name("kappa.svg"), figure)
