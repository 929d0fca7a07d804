"""What learning costs: ratios measured in one process, step beside step.

Run ``python benchmarks/learning.py --data DIR`` (a folder with FashionMNIST's idx files; without one,
random images of the same size serve: the arithmetic is the same), and ``--backbone FOLDER`` for a
pretrained ResNet-50 in place of a random one. Results go to results/learning.json; ``--only CASE`` measures
one.
"""

import argparse
import copy
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from measure import environment

import surefind as sf
from surefind.data.batches import read_batches
from surefind.data.images import ImageFiles
from surefind.learning.frozen import FrozenBackbone
from surefind.learning.methods.deterministic import (
    EncoderTask,
    Forward,
    PointEmbedder,
    plain_forward,
)
from surefind.learning.methods.laplace_online import LaplaceOnline, OnlineTask
from surefind.learning.methods.laplace_posthoc import HeadEmbedder
from surefind.learning.seeds import seeded
from surefind.learning.train import Task
from surefind.models.backbones import load_backbone, tower_of, with_linear_head
from surefind.models.networks import fashion_mnist_net
from surefind.pairs.losses import Contrastive
from surefind.paper.small_images import load_idx

RESULTS = Path(__file__).parent / "results" / "learning.json"


def resnet50(generator):
    """Draw the weights of a ResNet-50 with GeM pooling and a linear layer."""
    tower = tower_of({"config": {"model_type": "resnet"}, "pooling": "gem"}, generator=generator)
    return with_linear_head(tower, generator=generator)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with FashionMNIST's idx files")
    parser.add_argument("--steps", type=int, default=60, help="steps to time of each kind")
    parser.add_argument("--backbone", type=Path, help="folder of a pretrained ResNet-50")
    parser.add_argument("--only", help="the one case to measure")
    options = parser.parse_args()
    data = load_idx(options.data).train if options.data else random_images()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results["environment"] = environment()
    cases: dict[str, Callable[[], dict[str, float]]] = {
        case.__name__: partial(case, data, options.steps)
        for case in (online_step, posthoc_fit, embedding, resnet_embedding, image_folder)
    }
    cases["frozen_backbone"] = partial(frozen_backbone, options.backbone)
    for name in [options.only] if options.only else cases:
        results[name] = cases[name]()
        print(name, results[name])
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def random_images() -> sf.Dataset:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (60_000, 28, 28), dtype=torch.uint8, generator=generator)
    return sf.Dataset(images, torch.arange(60_000) % 10)


def alternate(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Time calls in turn, so that what disturbs one disturbs the others; give medians of CPU time."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.process_time()
            call()
            times[name].append(time.process_time() - start)
    return {name: statistics.median(values[2:]) for name, values in times.items()}


def stepper(task: Task, data: sf.Dataset, batch: int = 64) -> Callable[[], object]:
    parameters = task.parameters()
    optimizer = torch.optim.RMSprop(parameters, lr=1e-3, weight_decay=1e-5)
    count = iter(range(10**9))

    def step() -> None:
        i = next(count)
        rows = torch.arange(batch * i, batch * (i + 1)) % len(data)
        inputs, relation = data.read(rows), sf.Classes(data.labels[rows])
        optimizer.zero_grad(set_to_none=True)
        task.loss(inputs, relation, seeded(0, i)).backward()
        optimizer.step()
        task.after_step()

    return step


def online_step(data: sf.Dataset, steps: int) -> dict[str, float]:
    """An online LAM step against a deterministic one, FashionMNIST net, batch 64."""
    encoders = [fashion_mnist_net(generator=seeded(0)) for _ in range(2)]
    objective = Contrastive(0.7)
    online = OnlineTask(
        encoders[1],
        objective,
        0.7,
        LaplaceOnline(),
        3e4,
        torch.zeros_like(encoders[1].head_weights()),
    )
    calls = {
        "deterministic": stepper(EncoderTask(encoders[0], objective), data),
        "online": stepper(online, data),
    }
    return with_ratio(alternate(calls, steps), "online", "deterministic")


def posthoc_fit(data: sf.Dataset, steps: int) -> dict[str, float]:
    """Exact post-hoc fitting on all examples against an epoch of training (batch 256)."""
    encoder = fashion_mnist_net(generator=seeded(0))
    start = time.perf_counter()
    trained = sf.MetricLearner(encoder, method="deterministic", epochs=1, batch_size=256).fit(data)
    epoch = time.perf_counter() - start
    start = time.perf_counter()
    sf.MetricLearner(trained.fitted.encoder, method="laplace-posthoc", epochs=0).fit(data)
    return with_ratio({"fit": time.perf_counter() - start, "epoch": epoch}, "fit", "epoch")


def embedding(data: sf.Dataset, steps: int) -> dict[str, float]:
    """Embedding with κ against without, FashionMNIST net, batches of 512."""
    encoder = fashion_mnist_net(generator=seeded(0)).eval()
    return embedding_ratio(encoder, data.read(slice(0, 512)), steps)


def resnet_embedding(data: sf.Dataset, steps: int) -> dict[str, float]:
    """The same with ResNet-50 at 224 pixels, 2048 → 2048, batch 16."""
    encoder = resnet50(seeded(0)).eval()
    return embedding_ratio(encoder, torch.rand(16, 3, 224, 224, generator=seeded(1)), 16)


def embedding_ratio(encoder: sf.Encoder, inputs: torch.Tensor, repeats: int) -> dict[str, float]:
    mean = encoder.head_weights()
    posterior = sf.HeadPosterior(mean, torch.full_like(mean, 1e4))
    calls = {
        "without": partial(PointEmbedder(encoder).embed, inputs),
        "with": partial(HeadEmbedder(encoder, posterior).embed, inputs),
    }
    return with_ratio(alternate(calls, repeats), "with", "without")


def image_folder(data: sf.Dataset, steps: int) -> dict[str, float]:
    """Reading JPEGs of 500 × 375 pixels, cropped and resized to 224, with augmentation."""
    from PIL import Image

    generator = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for i in range(600):
            small = generator.integers(0, 256, (12, 16, 3), dtype=np.uint8)
            picture = Image.fromarray(small).resize((500, 375), Image.Resampling.BICUBIC)
            paths.append(Path(folder) / f"{i}.jpg")
            picture.save(paths[-1], quality=90)
        files = sf.Dataset(ImageFiles(paths), np.arange(600) % 10)
        preprocessing = sf.Preprocessing(resize=256, crop=224, random_area=(0.25, 1.0), flip=True)
        rows = [np.arange(i, i + 32) for i in range(0, 576, 32)]
        start = time.perf_counter()
        for _ in read_batches(files, rows, preprocessing=preprocessing, augment_seed=(0, 0)):
            pass
        seconds = time.perf_counter() - start
    return {"images_per_second": 576 / seconds}


def frozen_backbone(backbone: Path | None) -> dict[str, float]:
    """Seconds of an epoch for each image: ResNet-50 at 224 pixels, 2048 → 2048, RMSprop.

    Through the network in batches of 16 images, with everything, the last stage or the head alone learning;
    against the last stage in batches of 16, and the head in batches of 64, on what was computed once and is
    mapped from files. Images are in memory: decoding and augmenting them would come on top.
    """
    encoder = with_linear_head(load_backbone(backbone), generator=seeded(0))
    generator = torch.Generator().manual_seed(0)
    images = sf.Dataset(
        torch.randint(256, (64, 3, 224, 224), dtype=torch.uint8, generator=generator),
        torch.arange(64) % 16,
    )
    objective = Contrastive(0.7)

    def task(network: sf.Encoder, forward: Forward = plain_forward) -> EncoderTask:
        return EncoderTask(copy.deepcopy(network), objective, forward)

    steps: dict[str, tuple[int, Callable[[], object]]] = {
        "network, all of it": (16, stepper(task(encoder), images, 16))
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, stages, batch in (("last stage", 1, 16), ("head", 0, 64)):
            freezing = sf.Freezing(trained_stages=stages, cache=folder)
            frozen = FrozenBackbone.of(encoder, freezing)
            learner = sf.MetricLearner(encoder, freeze_backbone=freezing)
            through = task(frozen.upper, partial(above_frozen, frozen.cut.below))
            start = time.process_time()
            features = learner.features(images)
            passed = {"features, once": time.process_time() - start} if stages == 0 else {}
            steps[f"network, {name}"] = 16, stepper(through, images, 16)
            steps[f"features, {name}"] = batch, stepper(task(frozen.upper), features, batch)
        times = alternate({name: step for name, (_, step) in steps.items()}, 5)
    each = {name: times[name] / batch for name, (batch, _) in steps.items()}
    return {
        **each,
        **{name: seconds / len(images) for name, seconds in passed.items()},
        "ratio": each["network, head"] / each["features, head"],
    }


def above_frozen(
    below: torch.nn.Module, upper: sf.Encoder, images: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    with torch.no_grad():
        features = below(images)
    return plain_forward(upper, features, generator)


def with_ratio(times: dict[str, float], top: str, bottom: str) -> dict[str, float]:
    return times | {"ratio": times[top] / times[bottom]}


if __name__ == "__main__":
    main()
