"""Letters from the system's fonts: what a folder of them becomes, and what is known of an own classifier.

    apt-get install fonts-dejavu fonts-liberation fonts-freefont-ttf fonts-noto-core   (and further ones)
    python benchmarks/letters.py [--seeds 2] [--only folder|classifier]

**folder**: 3,000 images of eight letters, a folder each, and nothing else: `surefind index`, then
`surefind calibrate` with what that kept apart and a target of 5 %. Asked are further images of these
letters, two letters that the folder does not have, characters of seven other scripts, and digits.

**classifier**: a small network that is trained to tell the eight letters apart, as anybody's is, and what
finds its wrong answers and foreign characters: its largest softmax probability, its energy, logistic
regression on its features, and all of its layers with the label model, fitted to other images.

Each seed draws letters, images and weights. Where a font draws a foreign character that looks like a known
letter, nothing can tell them apart: scripts are represented by characters that do not. Writes
benchmarks/results/letters.json.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from measure import environment
from PIL import Image, ImageDraw, ImageFont
from sklearn.linear_model import LogisticRegression
from torch import nn

import surefind as sf
from surefind.data.sources import load_folder, read_source
from surefind.learning.seeds import seeded
from surefind.models.networks import initialize

RESULTS = Path(__file__).parent / "results" / "letters.json"
FONTS = Path("/usr/share/fonts")
SIDE, DRAWN = 28, 112
LETTERS, DIGITS = "ABCDEFGHJK", "0123456789"
"""Without I and O, which are digits too."""
FOREIGN = {
    "Greek": "ΓΔΘΛΞΠΣΦΨΩ",
    "Cyrillic": "ДЖИЛЦЧШЩЮЯ",
    "Armenian": "ԲԳԴԵԶԷԸԺՃՇ",
    "Georgian": "აბგდეზთკლმ",
    "Devanagari": "अकखगघचजटतप",
    "Thai": "กขคงจชดตบผ",
    "Hebrew": "אבגדהלמפקש",
}
FOLDER, ASKED, EACH = 3000, 1000, 200
TARGET, KNOWN_ACCEPTED, GATE = 0.05, 0.88, 0.05


@cache
def fonts_with(characters: str) -> list[Path]:
    """Return the font files that draw each of the characters, and each in its own way."""

    def draws(file: Path) -> bool:
        try:
            font = ImageFont.truetype(file, 32)
            shapes = {bytes(font.getmask(c)) for c in ("\uffff", *characters)}
        except OSError:
            return False
        return len(shapes) == len(characters) + 1 and b"" not in shapes

    return [f for f in sorted(FONTS.rglob("*")) if f.suffix in (".ttf", ".otf") and draws(f)]


def draw(
    characters: str, count: int, fonts: Sequence[Path], rng: np.random.Generator
) -> Iterator[tuple[str, Image.Image]]:
    """Draw characters at random, each in a font, and slanted, stretched, turned and moved by chance."""
    for character in rng.choice([*characters], count):
        font = ImageFont.truetype(fonts[rng.integers(len(fonts))], int(DRAWN * rng.uniform(0.6, 1)))
        image = Image.new("L", (DRAWN, DRAWN))
        ImageDraw.Draw(image).text((DRAWN / 2, DRAWN / 2), character, 255, font, anchor="mm")
        map_back = np.eye(2) + 0.15 * rng.normal(size=(2, 2))
        middle = np.full(2, DRAWN / 2)
        offset = middle - map_back @ middle + DRAWN * 0.04 * rng.normal(size=2)
        matrix = np.column_stack([map_back, offset]).ravel()
        affine, bilinear = Image.Transform.AFFINE, Image.Resampling.BILINEAR
        image = image.transform(image.size, affine, matrix, bilinear)
        yield character, image.resize((SIDE, SIDE), Image.Resampling.BOX)


def written(folder: Path, drawn: Iterator[tuple[str, Image.Image]]) -> Path:
    """Write images to a folder per character."""
    for i, (character, image) in enumerate(drawn):
        (folder / character).mkdir(parents=True, exist_ok=True)
        image.save(folder / character / f"{i}.png")
    return folder


def queries(known: str, unknown: str, rng: np.random.Generator, place: Path) -> dict[str, Path]:
    """Draw what is asked, a folder of each kind."""
    latin = fonts_with(LETTERS + DIGITS)
    kinds = {
        "known": (known, ASKED, latin),
        "unknown letters": (unknown, ASKED // 2, latin),
        "digits": (DIGITS, ASKED // 2, latin),
        **{name: (some, EACH, fonts_with(some)) for name, some in FOREIGN.items()},
    }
    return {name: written(place / name, draw(*given, rng)) for name, given in kinds.items()}


def folder(seed: int, place: Path) -> dict[str, float]:
    """Make a gallery of a folder by two commands, and ask it."""
    rng = np.random.default_rng(seed)
    letters = "".join(rng.permutation([*LETTERS]))
    known, unknown = letters[:8], letters[8:]
    written(place / "letters", draw(known, FOLDER, fonts_with(LETTERS + DIGITS), rng))
    asked = queries(known, unknown, rng, place / "asked")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command("index", place / "letters", "--out", place / "gallery")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    held = f"{place / 'gallery.run' / 'images.csv'}:test"
    command("calibrate", place / "gallery", held, "--max-wrong", TARGET)
    learner = sf.load(place / "gallery.run")
    found: dict[str, float] = {
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "epochs": len(learner.history_["encoder"]),
    }
    with sf.Gallery.open(place / "gallery", mode="r") as gallery:
        found["reached"] = bool(gallery.calibration and gallery.calibration.reached)
        rival = Rival(learner, load_folder(place / "letters")["all"], held)
        for kind, images in asked.items():
            data = load_folder(images)["all"]
            embedded = learner.embed(data)
            answers = gallery.search(embedded)
            match = answers.decision == "match"
            found[f"{kind}: matched"] = float(match.mean())
            found[f"{kind}: matched by logistic regression"] = float(rival.accepts(embedded).mean())
            if kind == "known":
                truth = np.array(data.classes, dtype=object)[data.labels.numpy()]
                found["wrong of the matched"] = float((answers.label != truth)[match].mean())
                found["right of all"] = float((answers.label == truth).mean())
    foreign = [found[f"{name}: matched"] for name in FOREIGN]
    found["foreign: matched"] = float(np.mean(foreign))
    found["foreign: matched by logistic regression"] = float(
        np.mean([found[f"{name}: matched by logistic regression"] for name in FOREIGN])
    )
    return found


class Rival:
    """Logistic regression on the same embeddings, and a threshold of 5 % wrong on what was kept apart."""

    def __init__(self, learner: sf.MetricLearner, data: sf.Dataset, held: str) -> None:
        other = read_source(held)
        kept = {Path(path).resolve() for path in other.inputs.paths}
        rows = [r for r, p in enumerate(data.inputs.paths) if Path(p).resolve() not in kept]
        some = data[rows]
        names, theirs = np.array(some.classes)[some.labels], np.array(other.classes)[other.labels]
        self.model = LogisticRegression(C=10, max_iter=1000).fit(
            vectors(learner.embed(some)), names
        )
        share = self.model.predict_proba(vectors(learner.embed(other)))
        right = self.model.classes_[share.argmax(1)] == theirs
        order = np.argsort(-share.max(1))
        wrong = np.cumsum(~right[order]) / np.arange(1, len(order) + 1)
        last = np.flatnonzero(wrong <= TARGET).max(initial=0)
        self.threshold = share.max(1)[order][last]

    def accepts(self, embedded: sf.Embeddings) -> np.ndarray:
        """Say which are as probable as the threshold asks."""
        return self.model.predict_proba(vectors(embedded)).max(1) >= self.threshold


def vectors(embedded: sf.Embeddings) -> np.ndarray:
    return np.asarray(embedded.mean)


def command(*words: object) -> None:
    subprocess.run(
        [sys.executable, "-m", "surefind", *map(str, words)], check=True, capture_output=True
    )


def classifier(seed: int, place: Path) -> dict[str, float]:
    """Train a classifier, and compare what finds its wrong answers and foreign characters."""
    rng = np.random.default_rng(seed)
    letters = "".join(rng.permutation([*LETTERS]))
    known, unknown = letters[:8], letters[8:]
    latin = fonts_with(LETTERS + DIGITS)

    def data(characters: str, count: int, fonts: Sequence[Path]) -> sf.Dataset:
        names, images = zip(*draw(characters, count, fonts, rng), strict=True)
        return sf.Dataset(np.stack([np.asarray(i) for i in images])[:, None], list(names))

    train, others = data(known, FOLDER, latin), data(known, FOLDER // 2, latin)
    asked = {
        "known": data(known, ASKED, latin),
        "unknown letters": data(unknown, ASKED // 2, latin),
        "digits": data(DIGITS, ASKED // 2, latin),
        **{name: data(some, EACH, fonts_with(some)) for name, some in FOREIGN.items()},
    }
    network = trained(train, seeded(seed, "classifier"))
    learner = sf.MetricLearner(network, method="laplace-posthoc", epochs=0)
    learner.fit(train, held_out=others)
    model = sf.LabelModel().fit(vectors(learner.embed(others)), named(others))
    linear = LogisticRegression(C=10, max_iter=1000).fit(features(network, train), named(train))
    logits = {name: run(network, part) for name, part in asked.items()}

    def odds(name: str) -> np.ndarray:
        best = model.posterior(vectors(learner.embed(asked[name]))).probability.max(1)
        return np.log(best.clip(1e-12)) - np.log1p(-best.clip(max=1 - 1e-12))

    def gated(name: str) -> np.ndarray:
        p = np.asarray(learner.embed(asked[name]).novelty)
        return np.where(p <= GATE, p - 1e6, odds(name))

    classes = train.classes
    predicted = np.array(classes)[logits["known"].argmax(1)]
    truth = np.array(named(asked["known"]))
    ours = np.asarray(model.posterior(vectors(learner.embed(asked["known"]))).label)
    signals: dict[str, Callable[[str], np.ndarray]] = {
        "softmax": lambda name: logits[name].softmax(1).amax(1).numpy(),
        "energy": lambda name: logits[name].logsumexp(1).numpy(),
        "logistic regression": lambda name: linear.predict_proba(
            features(network, asked[name])
        ).max(1),
        "label model of all layers": odds,
        "label model behind novelty": gated,
        "novelty": lambda name: np.asarray(learner.embed(asked[name]).novelty),
        "kappa": lambda name: np.asarray(learner.embed(asked[name]).kappa),
    }
    found = {
        "right: classifier": float((predicted == truth).mean()),
        "right: label model of all layers": float((ours == truth).mean()),
    }
    for name, signal in signals.items():
        sure = {kind: signal(kind) for kind in asked}
        right = (ours if name.startswith("label model") else predicted) == truth
        foreign = np.concatenate([sure[kind] for kind in FOREIGN])
        least = np.quantile(sure["known"], 1 - KNOWN_ACCEPTED)
        found[f"{name}: wrong answers"] = sf.metrics.auroc(
            -sure["known"][right], -sure["known"][~right]
        )
        found[f"{name}: foreign"] = sf.metrics.auroc(-sure["known"], -foreign)
        found[f"{name}: foreign accepted"] = float((foreign >= least).mean())
        for kind in ("unknown letters", "digits"):
            found[f"{name}: {kind} accepted"] = float((sure[kind] >= least).mean())
    return found


def trained(data: sf.Dataset, generator: torch.Generator, epochs: int = 6) -> nn.Module:
    """Train a network of two convolutions with the cross entropy, as anybody would."""
    network = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 49, 64), nn.ReLU(), nn.Linear(64, len(data.classes))),
    )
    initialize(network, generator)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(data), generator=generator).split(64):
            loss = nn.functional.cross_entropy(network(data[rows].read()), data.labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return network.eval()


@torch.no_grad()
def run(network: nn.Module, data: sf.Dataset) -> torch.Tensor:
    return torch.cat([network(x) for x in data.read().split(500)])


def features(network: nn.Module, data: sf.Dataset) -> np.ndarray:
    return run(network[:-1], data).numpy()


def named(data: sf.Dataset) -> list[str]:
    return [data.classes[label] for label in data.labels.tolist()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", choices=("folder", "classifier"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results |= {"environment": environment(), "fonts": len(fonts_with(LETTERS + DIGITS))}
    for case in (folder, classifier):
        if options.only not in (None, case.__name__):
            continue
        runs = []
        for seed in range(options.seeds):
            with tempfile.TemporaryDirectory() as place:
                runs.append(case(seed, Path(place)))
            print(case.__name__, seed, json.dumps(runs[-1], indent=1), flush=True)
        mean = {name: float(np.mean([one[name] for one in runs])) for name in runs[0]}
        results[case.__name__] = {"mean": mean, "seeds": runs}
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
