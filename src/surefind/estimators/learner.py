"""The estimator: an encoder, a method, `fit`, `embed`, `save`; and `load`.

It stores its arguments and delegates. The caller's encoder is never changed: a fitted learner holds
its own.

A saved learner is a folder with one file, ``model.safetensors``: the tensors, and as JSON in its
header the architecture, the method and its options, what inputs it takes and the history. There is no
pickle in it, and opening it runs no code that it brings.
"""

import math
import warnings
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from surefind.checks import check_choice, check_int, check_positive
from surefind.curvature.dataset import check_informative
from surefind.data.batches import batches, like_network
from surefind.data.dataset import Dataset
from surefind.data.inputs import FeatureViews, InputSpec, Preprocessing
from surefind.data.torch_data import as_dataset, is_torch_data
from surefind.embeddings import Embeddings
from surefind.errors import InputError
from surefind.learning.distributed import world
from surefind.learning.frozen import (
    PREFIX,
    Freezing,
    FrozenBackbone,
    FrozenEmbedder,
    check_features,
    started,
)
from surefind.learning.methods import METHODS
from surefind.learning.methods.contract import Embedder, Method, unprefixed
from surefind.learning.methods.deterministic import Deterministic
from surefind.learning.novelty_pass import Novelty, NoveltyGuard, fit_frozen_novelty, fit_novelty
from surefind.learning.session import Report, TrainingSession
from surefind.learning.train import Epoch, Optimizer, Progress, TrainConfig
from surefind.models.encoder import Encoder
from surefind.models.saving import build, describe, load_state, load_tensors, save_tensors
from surefind.models.splitting import EXAMPLES, Split, joined, run_module, split_module
from surefind.novelty.statistics import StageWatch
from surefind.pairs.losses import MARGIN, Contrastive, ContrastiveLoss, Objective
from surefind.pairs.relations import NEGATIVE_RADIUS, POSITIVE_RADIUS, as_relation

FORMAT = 4
FILE = "model.safetensors"
FEATURES = "features"
"""Folder of features in that of the checkpoints."""
DEFAULT_NOVELTY = Novelty()
COUNTED_POSITIONS = 10_000
"""Examples with positions whose pairs are counted before a training, which takes about a second."""
SETTINGS = ("epochs", "seed", "batch_size", "margin")
"""Arguments that are saved with the model beside encoder, method and preprocessing."""


class MetricLearner:
    """Learn embeddings that say how sure they are.

    Args:
        encoder: Backbone and head; stays as it is. Or a trained module of your own, from inputs to outputs
            (n, z): `fit` finds its last linear layer (`surefind.models.splitting`).
        method: A name ("deterministic", "laplace-posthoc", "laplace-online", "mc-dropout",
            "deep-ensemble", "pfe", "hib") or a method with its options, such as
            ``surefind.learning.methods.LaplaceOnline(memory=1e-3)``.
        epochs: Passes over the data; 0 takes the encoder as it comes.
        seed: Decides everything random.
        batch_size: Examples a step.
        margin: Squared distance up to which negative pairs repel.
        learning_rate: Of RMSprop with weight decay 1e-5.
        decay: Factor of the learning rate from epoch to epoch; exp(-0.1) by default.
        optimizer: Makes another torch optimiser from a list of parameters.
        objective: Another loss, such as ``surefind.pairs.losses.External(loss, miner)``.
        examples_per_class: K, for batches of K examples of each of batch_size/K classes, or cells of a grid
            where the data have positions.
        radii: Where the data have positions: pairs are positive within the first distance, negative
            beyond the second.
        preprocessing: How images are cut, resized and normalised; saved with the model.
        workers: Threads that read images ahead.
        novelty: How to fit novelty, with which every embedding says whether such an input was ever seen;
            None for none.
        freeze_backbone: True leaves the backbone as it is and trains the head on features that are
            computed once; `surefind.Freezing` says more: whether the last stages learn, how many augmented
            views there are, and where features are kept.

    Attributes:
        split_: Where a module was split; None if an encoder was given.
        embedder_: The fitted method.
        novelty_: What novelty came to; None without, or with fewer than 20 examples.
        input_spec_: What inputs it takes, determined from the training data and saved with the model.
        history_: Mean loss and seconds of each epoch, by stage.
    """

    def __init__(
        self,
        encoder: nn.Module,
        *,
        method: str | Method = "laplace-online",
        epochs: int = 20,
        seed: int = 0,
        batch_size: int = 64,
        margin: float = MARGIN,
        learning_rate: float = 1e-3,
        decay: float = float(np.exp(-0.1)),
        optimizer: Optimizer | None = None,
        objective: Objective | None = None,
        examples_per_class: int | None = None,
        radii: tuple[float, float] = (POSITIVE_RADIUS, NEGATIVE_RADIUS),
        preprocessing: Preprocessing | None = None,
        workers: int = 2,
        novelty: Novelty | None = DEFAULT_NOVELTY,
        freeze_backbone: bool | Freezing = False,
    ) -> None:
        # A module becomes an encoder in `fit`, which has inputs to run it on.
        self.encoder: Any = encoder
        self.split_: Split | None = None
        self.method = method
        self.epochs = epochs
        self.seed = seed
        self.batch_size = batch_size
        self.margin = margin
        self.learning_rate = learning_rate
        self.decay = decay
        self.optimizer = optimizer
        self.objective = objective
        self.examples_per_class = examples_per_class
        self.radii = radii
        self.preprocessing = preprocessing
        self.workers = workers
        self.novelty = novelty
        self.freeze_backbone = freeze_backbone

    def fit(
        self,
        dataset: Any,
        *,
        held_out: Any = None,
        folder: str | Path | None = None,
        report: Report = lambda _stage, _progress: None,
    ) -> "MetricLearner":
        """Learn from a data set.

        Args:
            dataset: Images or features with labels or positions: a `Dataset`, or a map-style data set or
                loader of PyTorch, which is read into memory (`surefind.data.torch_data`).
            held_out: Known examples that are not in it, for the p-values of novelty. None takes the
                training data themselves, cross-fitted (`surefind.novelty.model`): good enough for frozen
                networks, while a network that was trained on them may flag new ones too often.
            folder: Where checkpoints are written; the same call with the same folder resumes where an
                earlier one was cut off. None writes nothing.
            report: Called after each step with the stage's name and progress.

        Returns:
            The learner itself.

        Raises:
            InputError: If there is nothing to learn from, or the network does not take the data.
        """
        dataset = as_dataset("dataset", dataset)
        if held_out is not None:
            # Before the training and not after it.
            held_out = as_dataset("held_out", held_out)
            spec = InputSpec.of(dataset.inputs, self.preprocessing)
            held_out.read(slice(1), preprocessing=spec)
        check_int("epochs", self.epochs, least=0)
        objective = self.objective or Contrastive(self.margin)
        # The curvature is that of the loss that is trained on.
        margin = self.margin
        if isinstance(objective, ContrastiveLoss):
            margin = objective.squared_margin
        check_positive("margin", margin)
        check_positive("learning_rate", self.learning_rate)
        check_positive("decay", self.decay)
        rmsprop = partial(torch.optim.RMSprop, lr=self.learning_rate, weight_decay=1e-5)
        config = TrainConfig(
            epochs=self.epochs,
            batch_size=self.batch_size,
            optimizer=self.optimizer or rmsprop,
            decay=self.decay,
            seed=self.seed,
            examples_per_class=self.examples_per_class,
            radii=self.radii,
            preprocessing=self.preprocessing,
            workers=self.workers,
        )
        # What decides the training beyond the numbers of its config.
        settings = {
            "learning_rate": None if self.optimizer else self.learning_rate,
            "decay": self.decay,
            "radii": list(self.radii),
            "preprocessing": None if self.preprocessing is None else self.preprocessing.to_dict(),
        }
        self.check(dataset)
        where = None if folder is None else Path(folder)
        run = TrainingSession(config, objective, margin, where, report, settings)
        self.input_spec_: InputSpec = InputSpec.of(dataset.inputs, self.preprocessing)
        if self.freezing is not None:
            return self._fit_frozen(dataset, held_out, run)
        self.embedder_: Embedder = _method(self.method).fit(self.encoder, dataset, run)
        self.history_: dict[str, tuple[Epoch, ...]] = run.history
        self.fit_novelty(dataset, held_out=held_out, folder=folder, report=report)
        return self

    def check(self, dataset: Any) -> None:
        """Refuse data that nothing could be learnt from, before anything long; `fit` does so first.

        Args:
            dataset: As for `fit`.

        Raises:
            InputError: If the network does not take the data, or novelty names stages that it has not; as a
                `DegenerateError`, if no two examples are the same, or none are different.
        """
        dataset = as_dataset("dataset", dataset)
        learns = self.epochs or not isinstance(_method(self.method), Deterministic)
        learns |= self.freezing is not None and self.freezing.head == "whitened-within"
        # Pairs of positions are counted one by one: of many, the pass over all pairs will tell.
        if learns and (dataset.labels is not None or len(dataset) <= COUNTED_POSITIONS):
            near, far = self.radii
            relation = dataset.relation(positive_radius=near, negative_radius=far)
            check_informative(as_relation(relation), field="dataset")
        self._resolve_encoder(dataset)

    def features(
        self,
        dataset: Any,
        *,
        folder: str | Path | None = None,
        report: Report = lambda _stage, _progress: None,
    ) -> Dataset:
        """Compute the features of a data set with the frozen backbone, once.

        `fit`, `embed` and `sample` take what this returns in place of the data set, and pass nothing
        through the backbone again.

        Args:
            dataset: Images, or what the backbone takes.
            folder: Where features are kept if ``freeze_backbone`` names no cache; None for memory.
            report: Called after each batch, with the stage "features".

        Returns:
            The data set, with the features as inputs.

        Raises:
            InputError: If the backbone is not frozen.
        """
        dataset = as_dataset("dataset", dataset)
        fitted = getattr(self, "embedder_", None)
        if isinstance(fitted, FrozenEmbedder):
            return self._features(fitted.backbone, dataset, self.input_spec_, folder, report)
        self._resolve_encoder(dataset)
        spec = InputSpec.of(dataset.inputs, self.preprocessing)
        return self._features(self._frozen_backbone(), dataset, spec, folder, report)

    def fit_novelty(
        self,
        dataset: Any,
        *,
        held_out: Any = None,
        folder: str | Path | None = None,
        report: Report = lambda _stage, _progress: None,
    ) -> "MetricLearner":
        """Fit novelty alone, also of a model that was trained before, or elsewhere.

        Args:
            dataset: What the network was trained on.
            held_out: Known examples that it was not trained on; as for `fit`.
            folder: Where the pass keeps what it has, to be resumed; None keeps nothing.
            report: Called after each batch, with the stage "novelty".

        Returns:
            The learner itself.
        """
        dataset = as_dataset("dataset", dataset)
        if held_out is not None:
            held_out = as_dataset("held_out", held_out)
        embedder = self.fitted
        self.novelty_: NoveltyGuard | None = None
        if self.novelty is not None and isinstance(embedder, FrozenEmbedder):
            how: dict[str, Any] = {"folder": folder, "report": report}
            known = None if held_out is None else self.features(held_out, **how)
            kept = self.features(dataset, **how)
            self.novelty_ = fit_frozen_novelty(
                embedder, kept, known, options=self.novelty, seed=self.seed
            )
        elif self.novelty is not None:
            self.novelty_ = fit_novelty(
                embedder,
                dataset,
                held_out,
                options=self.novelty,
                spec=self.input_spec_,
                seed=self.seed,
                folder=None if folder is None else Path(folder),
                workers=self.workers,
                on_batch=lambda done, of: report("novelty", Progress(0, 1, done, of, math.nan)),
            )
        return self

    @property
    def freezing(self) -> Freezing | None:
        """How the backbone is frozen; None if it is not. One that cannot learn is frozen in any case."""
        wanted = self.freeze_backbone
        if not isinstance(wanted, bool):
            return wanted
        backbone = getattr(self.encoder, "backbone", None)
        return Freezing() if wanted or getattr(backbone, "cannot_learn", False) else None

    def _resolve_encoder(self, dataset: Dataset) -> None:
        """Make an encoder of a module; see that it takes the data, and has the stages to watch."""
        network = self.encoder
        if not isinstance(network, nn.Module):
            raise InputError(
                f"encoder must be a surefind.Encoder or a torch module; got {type(network).__name__}.",
                field="encoder",
            )
        if isinstance(dataset.inputs, FeatureViews):  # a network has computed them already
            _check_encoder(network)
        else:
            spec = InputSpec.of(dataset.inputs, self.preprocessing)
            first = like_network(dataset.read(slice(EXAMPLES), preprocessing=spec), network)
            if not isinstance(network, Encoder):
                self.encoder, self.split_ = split_module(network, first)
                if self.epochs and self.split_.folded is not None:
                    warnings.warn(
                        f"{self.split_}: training goes on without it, on a network that normalises no "
                        "batches after its head. With epochs=0 the fold is exact.",
                        UserWarning,
                        stacklevel=3,
                    )
            else:
                _try(network, first)
        if self.novelty is not None and self.novelty.stages is not None:
            StageWatch(self.encoder.backbone, self.novelty.stages)

    def embedder_for(self, dataset: Dataset) -> Embedder:
        """Return what embeds the inputs of a data set: for features, what is above the frozen backbone."""
        embedder = self.fitted
        if not isinstance(dataset.inputs, FeatureViews):
            return embedder
        if not isinstance(embedder, FrozenEmbedder):
            raise InputError(
                "these are features of a frozen backbone, and this learner's is not frozen. Give the "
                "images themselves.",
                field="inputs",
            )
        check_features(dataset.inputs, embedder.cut.below)
        return embedder.upper

    def _frozen_backbone(self) -> FrozenBackbone:
        if self.freezing is None:
            raise InputError(
                "features are kept of a frozen backbone only. Give freeze_backbone=True.",
                field="freeze_backbone",
            )
        return FrozenBackbone.of(self.encoder, self.freezing)

    def _fit_frozen(
        self, dataset: Dataset, held_out: Dataset | None, run: TrainingSession
    ) -> "MetricLearner":
        """Compute features, train what is above on them, and fit novelty from their statistics."""
        backbone, spec = self._frozen_backbone(), self.input_spec_
        how = run.config.preprocessing
        if backbone.freezing.views:
            if how is None or not (how.random_area or how.flip):
                raise InputError(
                    "views are augmented images, and nothing says how to augment them. Give preprocessing "
                    "with random_area or flip, or views=0.",
                    field="views",
                )
            if isinstance(dataset.inputs, FeatureViews):
                raise InputError(
                    "these are features of plain images, so there are no augmented views to train on. "
                    "Give the images themselves, or views=0.",
                    field="views",
                )
        kept = self._features(backbone, dataset, spec, run.folder, run.report, augmented=how)
        known = None
        if held_out is not None:
            known = self._features(backbone, held_out, spec, run.folder, run.report)
        # What else decides the training is in the key of the features.
        settings = run.settings | {"head": backbone.freezing.head}
        above = replace(run, config=replace(run.config, preprocessing=None), settings=settings)
        upper = started(backbone.upper, kept, backbone.freezing.head, run.config.radii)
        fitted = _method(self.method).fit(upper, kept, above)
        self.embedder_ = FrozenEmbedder(backbone, fitted)
        self.history_ = run.history
        return self.fit_novelty(kept, held_out=known)

    def _features(
        self,
        backbone: FrozenBackbone,
        dataset: Dataset,
        spec: InputSpec,
        folder: str | Path | None,
        report: Report,
        *,
        augmented: Preprocessing | None = None,
    ) -> Dataset:
        return backbone.features(
            dataset,
            spec,
            stages=None if self.novelty is None else self.novelty.stages,
            preprocessing=augmented,
            seed=self.seed,
            folder=None if folder is None else Path(folder) / FEATURES,
            workers=self.workers,
            on_rows=lambda done, of: report("features", Progress(0, 1, done, of, math.nan)),
        )

    def embed(self, inputs: Any, *, batch_size: int = 512) -> Embeddings:
        """Embed inputs, each with its concentration and, if that was fitted, its novelty.

        Args:
            inputs: A data set, also one of PyTorch or its loader, in the data set's order; or a tensor or
                array of what a data set takes. Image files of any size are prepared as `InputSpec.prepare`
                says; arrays must have the shape that the model takes.
            batch_size: Inputs at a time.

        Returns:
            The embeddings; NumPy arrays if the inputs are one.
        """
        if is_torch_data(inputs):
            inputs = as_dataset("inputs", inputs)
        if isinstance(inputs, Dataset) and isinstance(inputs.inputs, FeatureViews):
            parts = self._embedded_features(inputs, batch_size)
        else:
            parts = [self.embed_batch(x) for x in self._batches(inputs, batch_size)]
        together = Embeddings.concatenate(parts)
        return together.numpy() if isinstance(inputs, np.ndarray) else together

    def _embedded_features(self, dataset: Dataset, batch_size: int) -> list[Embeddings]:
        upper, embedder, guard = self.embedder_for(dataset), self.fitted, self.novelty_
        if guard is None:
            return [upper.embed(x) for x in self._batches(dataset, batch_size)]
        assert isinstance(embedder, FrozenEmbedder)
        rows = np.arange(len(dataset))
        return [
            guard.embed_features(embedder, dataset.inputs, rows[i : i + batch_size])
            for i in range(0, len(rows), batch_size)
        ]

    def embed_batch(self, batch: Tensor) -> Embeddings:
        """Embed a batch that is prepared as the network takes it, on its device and in its dtype."""
        embedder, guard = self.fitted, self.novelty_
        return embedder.embed(batch) if guard is None else guard.embed(embedder, batch)

    def sample(
        self,
        inputs: Any,
        n_samples: int,
        *,
        joint: bool = True,
        generator: torch.Generator,
        batch_size: int = 256,
    ) -> Any:
        """Draw embeddings.

        Args:
            inputs: A data set, or a tensor or array of what a data set takes.
            n_samples: How many of each input.
            joint: Whether one sampled network embeds all inputs; needed to compare them.
            generator: The source of randomness.
            batch_size: Inputs at a time.

        Returns:
            Unit vectors (s, n, z); a NumPy array if the inputs are one.
        """
        check_int("n_samples", n_samples, least=1)
        if is_torch_data(inputs):
            inputs = as_dataset("inputs", inputs)
        whose = self.fitted if not isinstance(inputs, Dataset) else self.embedder_for(inputs)
        draw = whose.sampler(n_samples, joint=joint, generator=generator)
        samples = torch.cat([draw(x) for x in self._batches(inputs, batch_size)], dim=1)
        return samples.cpu().numpy() if isinstance(inputs, np.ndarray) else samples

    def save(self, path: str | Path) -> None:
        """Write the fitted learner to a folder, atomically.

        Args:
            path: The folder; it is made if need be, and an older model in it is replaced.

        Raises:
            InputError: If the learner is not fitted, or its method has no name.
        """
        tensors = self.fitted.tensors()
        method, name = _method(self.method), self.method_name
        if name is None:
            raise InputError(
                f"{type(method).__name__} is not known by name, so it could not be loaded again. Add it "
                "to surefind.learning.methods.METHODS."
            )
        metadata = {
            "format": FORMAT,
            "surefind": version("surefind"),
            "method": name,
            "options": asdict(method) if is_dataclass(method) else {},
            "architecture": describe(self.encoder),
            "inputs": self.input_spec_.to_dict(),
            "history": {k: [asdict(e) for e in v] for k, v in self.history_.items()},
            "settings": {name: getattr(self, name) for name in SETTINGS},
            "novelty": None if self.novelty_ is None else {"stages": list(self.novelty_.stages)},
            "novelty_options": None if self.novelty is None else asdict(self.novelty),
            "split": None if self.split_ is None else asdict(self.split_),
            "freezing": None if self.freezing is None else self.freezing.plan,
        }
        if self.novelty_ is not None:
            tensors |= self.novelty_.tensors()
        if world()[0] == 0:
            Path(path).mkdir(parents=True, exist_ok=True)
            save_tensors(Path(path) / FILE, tensors, metadata)

    @property
    def method_name(self) -> str | None:
        """The method's name; None for one that has none."""
        kind = type(_method(self.method))
        return next((name for name, known in METHODS.items() if known is kind), None)

    @property
    def fitted(self) -> Embedder:
        """The fitted method.

        Raises:
            InputError: If the learner has not been fitted.
        """
        if not hasattr(self, "embedder_"):
            raise InputError("this learner is not fitted yet; call fit(dataset) first.")
        return self.embedder_

    def _batches(self, inputs: Any, batch_size: int) -> Iterator[Tensor]:
        check_int("batch_size", batch_size, least=1)
        dataset = inputs if isinstance(inputs, Dataset) else Dataset(inputs)
        if len(dataset) == 0:
            raise InputError("there is nothing to embed: the inputs are empty.")
        network, spec = self.fitted.network, self.input_spec_
        return batches(dataset, network, preprocessing=spec, size=batch_size, workers=self.workers)


def load(path: str | Path, *, encoder: nn.Module | None = None) -> MetricLearner:
    """Read a saved learner.

    Args:
        path: The folder that `MetricLearner.save` wrote.
        encoder: The network, if its layers are not of the kinds that can be described in a file: an
            encoder, or a module such as the learner was given.

    Returns:
        The fitted learner.

    Raises:
        InputError: If the folder holds no model, another version's, or one whose network must be given.
    """
    tensors, metadata = load_tensors(Path(path) / FILE)
    if metadata.get("format") != FORMAT:
        raise InputError(
            f"{path} is of format {metadata.get('format')!r}; this version of surefind reads "
            f"{FORMAT}. Use the version that wrote it: {metadata.get('surefind')}."
        )
    split = metadata.get("split")
    split = None if split is None else Split(**split | {"shape": tuple(split["shape"])})
    if encoder is None:
        if metadata["architecture"] is None:
            raise InputError(
                f"{path} holds weights of a network that a file cannot describe.",
                field="encoder",
                hint="Build the same network in Python and pass it: surefind.load(path, encoder=...).",
            )
        encoder = build(metadata["architecture"])
    elif split is not None and not isinstance(encoder, Encoder):
        encoder = joined(encoder, split)
    _check_encoder(encoder)
    options = metadata.get("novelty_options", {})
    spec = InputSpec.from_dict(metadata["inputs"])
    frozen = metadata["freezing"]
    learner = MetricLearner(
        encoder,
        method=METHODS[metadata["method"]](**metadata["options"]),
        preprocessing=spec.preprocessing,
        novelty=None if options is None else _novelty(options),
        freeze_backbone=False if frozen is None else Freezing(**frozen),
        **metadata["settings"],
    )
    learner.split_ = split
    learner.embedder_ = _restored(learner, tensors)
    learner.input_spec_ = spec
    kept = metadata["novelty"]
    learner.novelty_ = None if kept is None else NoveltyGuard.restored(tensors, kept["stages"])
    learner.history_ = {
        stage: tuple(Epoch(**e) for e in epochs) for stage, epochs in metadata["history"].items()
    }
    return learner


def _restored(learner: MetricLearner, tensors: dict[str, Tensor]) -> Embedder:
    method, freezing = _method(learner.method), learner.freezing
    if freezing is None:
        return method.restore(learner.encoder, tensors)
    backbone = FrozenBackbone.of(learner.encoder, freezing)
    load_state(backbone.cut.below, unprefixed(PREFIX, tensors))
    return FrozenEmbedder(backbone, method.restore(backbone.upper, tensors))


def _check_encoder(value: Any) -> None:
    if not isinstance(value, Encoder):
        raise InputError(
            f"encoder must be a surefind.Encoder(backbone, head) here; got {type(value).__name__}.",
            field="encoder",
        )


def _novelty(options: dict[str, Any]) -> Novelty:
    stages = options.get("stages")
    return Novelty(**options | {"stages": None if stages is None else tuple(stages)})


@torch.no_grad()
def _try(encoder: Encoder, inputs: Tensor) -> None:
    """See that a network takes inputs, before anything long; it keeps its modes."""
    modes = {module: module.training for module in encoder.modules()}
    encoder.eval()
    try:
        run_module(encoder, inputs[:2])
    finally:
        for module, training in modes.items():
            module.training = training


def _method(method: str | Method) -> Method:
    if isinstance(method, str):
        check_choice("method", method, METHODS)
        return METHODS[method]()
    return method
