"""The estimator: an encoder, a method, `fit`, `embed`, `save`; and `load`.

It stores its arguments and delegates. The caller's encoder is never changed: a fitted learner holds
its own.

A saved learner is a folder with one file, ``model.safetensors``: the tensors, and as JSON in its
header the architecture, the method and its options, what inputs it takes and the history. There is no
pickle in it, and opening it runs no code that it brings.
"""

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, fields, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from surefind.checks import check_choice, check_int, check_positive
from surefind.curvature.dataset import check_informative
from surefind.data.batches import batches, like_network
from surefind.data.dataset import Dataset, as_dataset, is_torch_data
from surefind.data.inputs import FeatureViews, InputSpec, Preprocessing
from surefind.embeddings import Embeddings
from surefind.errors import InputError
from surefind.learning.closed_form import checked_rows
from surefind.learning.distributed import world
from surefind.learning.frozen import (
    PREFIX,
    Freezing,
    FrozenBackbone,
    FrozenEmbedder,
    check_features,
    started,
)
from surefind.learning.layered import Head, LayerModel, fit_layers, passed, watched
from surefind.learning.methods import METHODS, LaplaceOnline, LaplacePosthoc
from surefind.learning.methods.contract import Embedder, Method, unprefixed
from surefind.learning.methods.deterministic import Deterministic, PointEmbedder, frozen
from surefind.learning.session import Report, TrainingSession
from surefind.learning.train import Epoch, Optimizer, Progress, TrainConfig
from surefind.models.encoder import Encoder
from surefind.models.layers import Layers, StageWatch
from surefind.models.saving import build, describe, load_state, load_tensors, save_tensors
from surefind.models.splitting import EXAMPLES, Split, joined, run_module, split_module
from surefind.models.vectors import with_ones
from surefind.pairs.losses import MARGIN, Contrastive, ContrastiveLoss, Objective
from surefind.pairs.relations import NEGATIVE_RADIUS, POSITIVE_RADIUS, as_relation

FORMAT = 5
FILE = "model.safetensors"
FEATURES = "features"
"""Folder of features in that of the checkpoints."""
COUNTED_POSITIONS = 10_000
"""Examples with positions whose pairs are counted before a training, which takes about a second."""
SETTINGS = ("epochs", "seed", "batch_size", "margin", "embedding", "embedding_dim", "novelty")
"""Arguments that are saved with the model beside encoder, method and preprocessing."""


def silent(_stage: str, _progress: Progress) -> None:
    """Report nothing."""


@dataclass(eq=False, repr=False)
class MetricLearner:
    """Train an encoder, or wrap a trained one, so that every embedding has an uncertainty.

    Args:
        encoder: Backbone and head; stays as it is. Or a trained module of your own, from inputs to outputs
            (n, z): `fit` finds its last linear layer (`surefind.models.splitting`).
        method: A name ("deterministic", "laplace-posthoc", "laplace-online", "mc-dropout",
            "deep-ensemble", "pfe", "hib") or a method with its options, such as
            ``surefind.learning.methods.LaplaceOnline(memory=1e-3)``.
        embedding: "layers" for a head in closed form on all layers, with a Laplace posterior
            (`surefind.learning.layered`); the network is then trained as a point estimate, or not at all
            where its backbone is frozen. "head" for the network's own embedding, as in the paper. None for
            "layers" with a Laplace method, and "head" with the others.
        embedding_dim: Rows of the head in closed form; None to choose.
        epochs: Passes over the data; 0 keeps the weights and only fits the posterior.
        stop_early: Whether a training ends before, when labels held out from it are told apart no better.
        seed: Decides everything random.
        batch_size: Examples a step.
        margin: Squared distance up to which negative pairs repel.
        learning_rate: Learning rate of RMSprop, with weight decay 1e-5.
        decay: Factor of the learning rate from epoch to epoch; exp(-0.1) by default.
        optimizer: Makes another torch optimiser from a list of parameters.
        objective: Another loss, such as ``surefind.objectives.External(loss, miner)``.
        examples_per_class: K, for batches of K examples of each of batch_size/K classes, or cells of a grid
            where the data have positions.
        radii: Where the data have positions: pairs are positive within the first distance, negative
            beyond the second.
        preprocessing: How images are cut, resized and normalised; saved with the model.
        workers: Threads that read images ahead.
        novelty: Whether every embedding says how unusual such an input is.
        stages: Names of modules in the backbone that are looked at; None for the rule of
            `surefind.models.layers`.
        freeze_backbone: True leaves the backbone as it is and trains the head on features that are
            computed once; `surefind.Freezing` says more: whether the last stages learn, how many augmented
            views there are, and where features are kept.

    Attributes:
        split_: Where a module was split; None if an encoder was given.
        embedder_: The fitted method.
        layers_: What was fitted to all layers; None where nothing was.
        trained_: Content hashes of what it was fitted to, ascending.
        input_spec_: What inputs it takes, determined from the training data and saved with the model.
        history_: Mean loss and seconds of each epoch, by stage.

    Raises:
        InputError: If an option is out of range, or there is no such method.
    """

    encoder: Any  # a module becomes an encoder in `fit`, which has inputs to run it on
    _: KW_ONLY
    method: Any = "laplace-online"
    embedding: Literal["layers", "head"] | None = None
    embedding_dim: int | None = None
    epochs: int = 20
    stop_early: bool = False
    seed: int = 0
    batch_size: int = 64
    margin: float = MARGIN
    learning_rate: float = 1e-3
    decay: float = math.exp(-0.1)
    optimizer: Optimizer | None = None
    objective: Objective | None = None
    examples_per_class: int | None = None
    radii: tuple[float, float] = (POSITIVE_RADIUS, NEGATIVE_RADIUS)
    preprocessing: Preprocessing | None = None
    workers: int = 2
    novelty: bool = True
    stages: Sequence[str] | None = None
    freeze_backbone: bool | Freezing = False

    def __post_init__(self) -> None:
        if not isinstance(self.method, Method):
            check_choice("method", self.method, METHODS)
            self.method = METHODS[self.method]()
        if self.embedding is None:
            laplace = isinstance(self.method, LaplaceOnline | LaplacePosthoc)
            self.embedding = "layers" if laplace else "head"
        check_choice("embedding", self.embedding, ("layers", "head"))
        check_int("epochs", self.epochs, least=0)
        if self.embedding_dim is not None:
            check_int("embedding_dim", self.embedding_dim, least=2)
        for name in ("margin", "learning_rate", "decay"):
            check_positive(name, getattr(self, name))
        self.split_: Split | None = None

    def fit(
        self,
        dataset: Any,
        *,
        held_out: Any = None,
        folder: str | Path | None = None,
        report: Report = silent,
    ) -> "MetricLearner":
        """Learn from a data set.

        Args:
            dataset: Images or features with labels or positions: a `Dataset`, or a map-style data set or
                loader of PyTorch, which is read into memory (`surefind.data.dataset`).
            held_out: Known examples that are not in it, for the p-values of novelty. None takes the
                training data themselves, cross-fitted (`surefind.novelty`): good enough for frozen
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
        spec = InputSpec.of(dataset.inputs, self.preprocessing)
        if held_out is not None:
            held_out = as_dataset("held_out", held_out)
            held_out.read(slice(1), preprocessing=spec)  # before the training and not after it
        self.check(dataset)
        run = self._session(None if folder is None else Path(folder), report)
        if self.stop_early and self.freezing is None:
            run = replace(run, held_out=held_out)
        self.input_spec_: InputSpec = spec
        self.trained_ = np.unique(dataset.hashes())
        layered = self.embedding == "layers"
        method = Deterministic() if layered else self.method
        if self.freezing is not None:
            dataset, held_out = self._fit_frozen(dataset, held_out, method, run)
        elif layered and not self.learns:
            self.embedder_: Embedder = PointEmbedder(frozen(copy.deepcopy(self.encoder)))
        else:
            self.embedder_ = method.fit(self.encoder, dataset, run)
        self.history_: dict[str, tuple[Epoch, ...]] = run.history
        return self.fit_layers(dataset, held_out=held_out, folder=folder, report=report)

    def check(self, dataset: Any) -> None:
        """Refuse data that nothing could be learnt from, before anything long; `fit` does so first.

        Args:
            dataset: As for `fit`.

        Raises:
            InputError: If the network does not take the data, or has none of the named stages; as a
                `DegenerateError`, if no two examples are the same, or none are different.
        """
        dataset = as_dataset("dataset", dataset)
        learns = self.epochs or self.embedding == "layers"
        learns = learns or not isinstance(self.method, Deterministic)
        learns |= self.freezing is not None and self.freezing.head == "whitened-within"
        # Pairs of positions are counted one by one: of many, the pass over all pairs will tell.
        if learns and (dataset.labels is not None or len(dataset) <= COUNTED_POSITIONS):
            near, far = self.radii
            relation = dataset.relation(positive_radius=near, negative_radius=far)
            check_informative(as_relation(relation), field="dataset")
        self._resolve_encoder(dataset)
        if self.freezing is not None:
            FrozenBackbone.of(self.encoder, self.freezing)
        elif not any(True for _ in self.encoder.backbone.parameters()):  # its layers are the input
            checked_rows(self.embedding_dim, self.encoder.head.in_features)

    def features(
        self, dataset: Any, *, folder: str | Path | None = None, report: Report = silent
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
        if self.freezing is None:
            raise InputError(
                "features are kept of a frozen backbone only. Give freeze_backbone=True.",
                field="freeze_backbone",
            )
        self._resolve_encoder(dataset)
        spec = InputSpec.of(dataset.inputs, self.preprocessing)
        backbone = FrozenBackbone.of(self.encoder, self.freezing)
        return self._features(backbone, dataset, spec, folder, report)

    def fit_layers(
        self,
        dataset: Any,
        *,
        held_out: Any = None,
        folder: str | Path | None = None,
        report: Report = silent,
    ) -> "MetricLearner":
        """Fit embedding and novelty to what all layers say, also of a model that was trained before.

        Args:
            dataset: What the network was trained on.
            held_out: Known examples that it was not trained on; as for `fit`.
            folder: Where features of a frozen backbone are kept; None for memory.
            report: Called after each batch, with the stage "layers".

        Returns:
            The learner itself.
        """
        embedder = self.fitted
        dataset = as_dataset("dataset", dataset)
        held_out = None if held_out is None else as_dataset("held_out", held_out)
        self.layers_: LayerModel | None = None
        layered = self.embedding == "layers"
        if not layered and not self.novelty:
            return self
        spec, (near, far) = self.input_spec_, self.radii
        self.trained_ = np.union1d(self.trained_, dataset.hashes())
        if isinstance(embedder, FrozenEmbedder):
            how: dict[str, Any] = {"folder": folder, "report": report}
            held_out = None if held_out is None else self.features(held_out, **how)
            dataset = self.features(dataset, **how)
            layers = dataset.inputs.layers.ending(output=self._takes_output)
        else:
            network = embedder.network
            first = like_network(dataset.read(slice(2), preprocessing=spec), network)
            layers = Layers.of(network.backbone, first, self.stages, output=self._takes_output)
        head = None
        if layered:
            names = ("structure", "distance", "scale", "prior_precision")
            given = vars(self.method) if isinstance(self.method, LaplacePosthoc) else {}
            margin = getattr(self.objective, "squared_margin", self.margin)
            options = {name: given[name] for name in names if name in given}
            head = Head(self.embedding_dim, margin, options)
        self.layers_ = fit_layers(
            embedder,
            dataset,
            held_out,
            layers=layers,
            head=head,
            relation=lambda some: as_relation(
                some.relation(positive_radius=near, negative_radius=far)
            ),
            novelty=self.novelty,
            spec=spec,
            seed=self.seed,
            workers=self.workers,
            on_batch=_counted(report, "layers"),
        )
        return self

    @property
    def learns(self) -> bool:
        """Whether training changes more than a last linear layer, which is not needed then."""
        if self.freezing is not None:
            return self.freezing.trained_stages > 0
        return any(p.requires_grad for p in self.encoder.backbone.parameters())

    @property
    def _takes_output(self) -> bool:
        """Whether the backbone's output stands for that of the head, which nobody has trained."""
        return self.embedding == "layers" and not self.learns and self.split_ is None

    def trained_on(self, inputs: Any) -> np.ndarray:
        """Return which of some inputs it was fitted to (n), by their content: no test of it.

        Of image files, the files are compared; of arrays, the numbers and their kind.

        Args:
            inputs: As for `embed`.

        Returns:
            True for those that it was fitted to.
        """
        self.fitted  # noqa: B018
        return np.isin(as_inputs(inputs).hashes(), self.trained_)

    @property
    def freezing(self) -> Freezing | None:
        """How the backbone is frozen; None if it is not. One that cannot learn is frozen in any case."""
        wanted = self.freeze_backbone
        if not isinstance(wanted, bool):
            return wanted
        backbone = getattr(self.encoder, "backbone", None)
        return Freezing() if wanted or getattr(backbone, "cannot_learn", False) else None

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

    def _session(self, folder: Path | None, report: Report) -> TrainingSession:
        rmsprop = partial(torch.optim.RMSprop, lr=self.learning_rate, weight_decay=1e-5)
        own = {f.name: getattr(self, f.name) for f in fields(TrainConfig) if f.name != "judge"}
        config = TrainConfig(**own | {"optimizer": self.optimizer or rmsprop})
        # What decides the training beyond the numbers of its config.
        settings = {
            "learning_rate": None if self.optimizer else self.learning_rate,
            "decay": self.decay,
            "radii": list(self.radii),
            "preprocessing": None if self.preprocessing is None else self.preprocessing.to_dict(),
        }
        objective, margin = self.objective or Contrastive(self.margin), self.margin
        if isinstance(objective, ContrastiveLoss):  # the curvature is that of the loss
            margin = objective.squared_margin
        return TrainingSession(config, objective, margin, folder, report, settings)

    def _resolve_encoder(self, dataset: Dataset) -> None:
        """Make an encoder of a module; see that it takes the data, and has the stages to watch."""
        computed = isinstance(dataset.inputs, FeatureViews)  # by a network, which stays
        _check_encoder(self.encoder, Encoder if computed else nn.Module)
        if not computed:
            spec = InputSpec.of(dataset.inputs, self.preprocessing)
            first = dataset.read(slice(EXAMPLES), preprocessing=spec)
            first = like_network(first, self.encoder)
            if isinstance(self.encoder, Encoder):
                _try(self.encoder, first)
            else:
                self.encoder, self.split_ = split_module(self.encoder, first)
                if self.epochs and self.split_.folded is not None:
                    warnings.warn(
                        f"{self.split_}: training goes on without it, on a network that normalises no "
                        "batches after its head. With epochs=0 the fold is exact.",
                        UserWarning,
                        stacklevel=3,
                    )
        if self.stages is not None:
            StageWatch(self.encoder.backbone, Layers(tuple(self.stages)))  # refuses other names

    def _fit_frozen(
        self, dataset: Dataset, held_out: Dataset | None, method: Method, run: TrainingSession
    ) -> tuple[Dataset, Dataset | None]:
        """Compute features, train what is above on them, and return them."""
        assert self.freezing is not None
        backbone, how = FrozenBackbone.of(self.encoder, self.freezing), self.preprocessing
        augmented = how is not None and (how.random_area or how.flip)
        if self.freezing.views and (not augmented or isinstance(dataset.inputs, FeatureViews)):
            raise InputError(
                "views are augmented images: they need the images themselves, not their features, and "
                "preprocessing with random_area or flip, which says how to augment them. Give both, or "
                "views=0.",
                field="views",
            )
        where = (self.input_spec_, run.folder, run.report)
        kept = self._features(backbone, dataset, *where, augmented=how)
        known = None if held_out is None else self._features(backbone, held_out, *where)
        # What else decides the training is in the key of the features.
        settings = run.settings | {"head": self.freezing.head}
        above = replace(run, config=replace(run.config, preprocessing=None), settings=settings)
        upper = backbone.upper
        if self.embedding == "layers" and not self.learns:
            self.embedder_ = FrozenEmbedder(backbone, PointEmbedder(frozen(copy.deepcopy(upper))))
        else:
            upper = started(upper, kept, self.freezing.head, self.radii)
            self.embedder_ = FrozenEmbedder(backbone, method.fit(upper, kept, above))
        return kept, known

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
            stages=self.stages,
            preprocessing=augmented,
            seed=self.seed,
            folder=None if folder is None else Path(folder) / FEATURES,
            workers=self.workers,
            on_rows=_counted(report, "features"),
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
        dataset = as_inputs(inputs)
        embedder, model = self.embedder_for(dataset), self.layers_
        _check_batches(dataset, batch_size)
        if model is None:
            parts = [embedder.embed(x) for x in self.batches(dataset, batch_size)]
        else:
            how: dict[str, Any] = {"size": batch_size, "workers": self.workers}
            how["own"] = model.keeps_own
            seen = passed(self.fitted, model.vector.layers, dataset, self.input_spec_, **how)
            parts = [model.embed(*one) for one in seen]
        together = Embeddings.concatenate(parts)
        return together.numpy() if isinstance(inputs, np.ndarray) else together

    def embed_batch(self, batch: Tensor) -> Embeddings:
        """Embed a batch that is prepared as the network takes it, on its device and in its dtype."""
        embedder, model = self.fitted, self.layers_
        if model is None:
            return embedder.embed(batch)
        own = model.keeps_own
        return model.embed(*watched(embedder, model.vector.layers, batch, own=own))

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
        dataset = as_inputs(inputs)
        draw = self.sampler(dataset, n_samples, joint=joint, generator=generator)
        samples = torch.cat([*draw(dataset, batch_size)], dim=1)
        return samples.cpu().numpy() if isinstance(inputs, np.ndarray) else samples

    def sampler(
        self, dataset: Dataset, n_samples: int, *, joint: bool, generator: torch.Generator
    ) -> Callable[[Dataset, int], Iterator[Tensor]]:
        """Return a function that draws samples of data sets of one kind, batch by batch.

        With ``joint``, the same sampled networks embed all of them.
        """
        model = self.layers_
        if model is None or model.posterior is None:
            own = self.embedder_for(dataset).sampler(n_samples, joint=joint, generator=generator)
            return lambda part, size: (own(x) for x in self.batches(part, size))
        posterior, vector = model.posterior, model.vector
        seed = int(torch.randint(2**62, (), generator=generator))

        def draw(part: Dataset, size: int) -> Iterator[Tensor]:
            how: dict[str, Any] = {"size": size, "workers": self.workers}
            for _, said in passed(self.fitted, vector.layers, part, self.input_spec_, **how):
                source = torch.Generator().manual_seed(seed) if joint else generator
                h = with_ones(vector(said))
                yield posterior.sample(h, n_samples, joint=joint, generator=source)

        return draw

    def save(self, path: str | Path) -> None:
        """Write the fitted learner to a folder, atomically.

        Args:
            path: The folder; it is made if need be, and an older model in it is replaced.

        Raises:
            InputError: If the learner is not fitted, or its method has no name.
        """
        tensors, name = dict(self.fitted.tensors()), self.method_name
        if name is None:
            raise InputError(
                f"{type(self.method).__name__} is not known by name, so it could not be loaded again. "
                "Add it to surefind.learning.methods.METHODS."
            )
        metadata = {
            "format": FORMAT,
            "surefind": version("surefind"),
            "method": name,
            "options": asdict(self.method),
            "architecture": describe(self.encoder),
            "inputs": self.input_spec_.to_dict(),
            "history": {k: [asdict(e) for e in v] for k, v in self.history_.items()},
            "settings": {name: getattr(self, name) for name in SETTINGS},
            "layers": None if self.layers_ is None else self.layers_.plan(),
            "stages": None if self.stages is None else list(self.stages),
            "split": None if self.split_ is None else asdict(self.split_),
            "freezing": None if self.freezing is None else self.freezing.plan,
        }
        tensors["trained"] = torch.from_numpy(self.trained_)
        if self.layers_ is not None:
            tensors |= self.layers_.tensors()
        if world()[0] == 0:
            Path(path).mkdir(parents=True, exist_ok=True)
            save_tensors(Path(path) / FILE, tensors, metadata)

    @property
    def outputs(self) -> int:
        """Dimensions of the embeddings."""
        model = getattr(self, "layers_", None)
        if model is None or model.posterior is None:
            return int(self.encoder.embedding_dim)
        return len(model.posterior.mean)

    @property
    def method_name(self) -> str | None:
        """The method's name; None for one that has none."""
        return next((n for n, known in METHODS.items() if known is type(self.method)), None)

    @property
    def fitted(self) -> Embedder:
        """The fitted method.

        Raises:
            InputError: If the learner has not been fitted.
        """
        if not hasattr(self, "embedder_"):
            raise InputError("this learner is not fitted yet; call fit(dataset) first.")
        return self.embedder_

    def batches(self, dataset: Dataset, batch_size: int) -> Iterator[Tensor]:
        """Read a data set in batches that are prepared as the network takes them."""
        _check_batches(dataset, batch_size)
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
    if encoder is None and metadata["architecture"] is None:
        raise InputError(
            f"{path} holds weights of a network that a file cannot describe.",
            field="encoder",
            hint="Build the same network and pass it: surefind.load(path, encoder=...).",
        )
    split, freezing, layers = (metadata[k] for k in ("split", "freezing", "layers"))
    split = split and Split(**split | {"shape": tuple(split["shape"])})
    if encoder is None:
        encoder = build(metadata["architecture"])
    elif split is not None and not isinstance(encoder, Encoder):
        encoder = joined(encoder, split)
    _check_encoder(encoder, Encoder)
    spec = InputSpec.from_dict(metadata["inputs"])
    learner = MetricLearner(
        encoder,
        method=METHODS[metadata["method"]](**metadata["options"]),
        preprocessing=spec.preprocessing,
        stages=metadata["stages"],
        freeze_backbone=False if freezing is None else Freezing(**freezing),
        **metadata["settings"],
    )
    learner.split_ = split
    learner.embedder_ = _restored(learner, tensors)
    learner.input_spec_, learner.trained_ = spec, tensors["trained"].numpy()
    learner.layers_ = None if layers is None else LayerModel.restored(tensors, layers)
    learner.history_ = {
        stage: tuple(Epoch(**e) for e in epochs) for stage, epochs in metadata["history"].items()
    }
    return learner


def _restored(learner: MetricLearner, tensors: dict[str, Tensor]) -> Embedder:
    method, freezing = learner.method, learner.freezing
    if learner.embedding == "layers":
        method = Deterministic()
    if freezing is None:
        fitted: Embedder = method.restore(learner.encoder, tensors)
        return fitted
    backbone = FrozenBackbone.of(learner.encoder, freezing)
    load_state(backbone.cut.below, unprefixed(PREFIX, tensors))
    return FrozenEmbedder(backbone, method.restore(backbone.upper, tensors))


def _check_encoder(value: Any, kind: type[nn.Module]) -> None:
    if not isinstance(value, kind):
        other = "" if kind is Encoder else " or a torch module"
        raise InputError(
            f"encoder must be a surefind.Encoder(backbone, head){other} here; got {type(value).__name__}.",
            field="encoder",
        )


def _check_batches(dataset: Dataset, batch_size: int) -> None:
    check_int("batch_size", batch_size, least=1)
    if len(dataset) == 0:
        raise InputError("there is nothing to embed: the inputs are empty.", field="inputs")


def as_inputs(inputs: Any) -> Dataset:
    """Return inputs to embed as a data set."""
    if isinstance(inputs, Dataset) or is_torch_data(inputs):
        return as_dataset("inputs", inputs)
    return Dataset(inputs)


def _counted(report: Report, stage: str) -> Callable[[int, int], None]:
    """Report examples that have passed as the progress of a stage without a loss."""
    return lambda done, of: report(stage, Progress(0, 1, done, of, math.nan))


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
