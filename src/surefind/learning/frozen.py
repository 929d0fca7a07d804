"""A backbone in two: the part below, which stays as it is, and the part above, which may learn.

    backbone = above ∘ below

With nothing to learn, the whole backbone lies below and the part above is the identity. Else the last
stages lie above, with the pooling after them. Stages are the residual stages of a ResNet or ConvNeXt, and
in an `nn.Sequential` its layers with parameters; a norm or a GeM belongs to the layer before it.

Both parts share their modules with the backbone that was cut: weights loaded into one are in the other.

Frozen backbones: every method trained on features that are computed once.

    z = head(above(below(x)))

``below`` stays as it is: its outputs are computed once (`surefind.learning.feature_cache`), and a method
trains ``above``, the last stages or nothing, and the head on them, as if they were the inputs. What comes
out is wrapped together with ``below`` into an embedder of images. Whatever is random in a method (dropout,
members of an ensemble, sampled heads) is above, so ``below`` runs once, however many networks are sampled.

A method gives what it would give on the whole network with ``below`` in evaluation mode and without
gradients, but for one thing: scale and prior precision of LAM, where they are not given, are tuned on
corrupted inputs (`surefind.posterior.tuning`), and these are features here.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from surefind.checks import check_choice, check_int
from surefind.data.batches import apply, like_network
from surefind.data.dataset import Dataset
from surefind.data.inputs import FeatureViews, InputSpec, Preprocessing
from surefind.embeddings import Embeddings
from surefind.errors import InputError
from surefind.learning.closed_form import closed_form_head
from surefind.learning.feature_cache import FeaturePass, OnRows, as_kept, network_digest
from surefind.learning.methods.contract import Embedder, Sampler, prefixed
from surefind.learning.methods.deterministic import frozen
from surefind.models.backbones import Tower
from surefind.models.encoder import Encoder
from surefind.models.layers import HEAD, OUTPUT, Layers, StageWatch, encoder_places
from surefind.models.networks import NORMS, GeM
from surefind.models.saving import load_state
from surefind.pairs.relations import as_relation


@dataclass(frozen=True, eq=False)
class Cut:
    """Both parts of a backbone.

    Attributes:
        below: Maps inputs to what the part above takes.
        above: Maps that to features (n, d).
        names_below: What modules of the backbone are called in the part below, by their names there.
        names_above: The same of the part above.
    """

    below: nn.Module
    above: nn.Module
    names_below: Mapping[str, str]
    names_above: Mapping[str, str]

    @classmethod
    def of(cls, backbone: nn.Module, below: nn.Module, above: nn.Module) -> "Cut":
        """Make it of parts that share their modules with the backbone."""
        return cls(below, above, _names(backbone, below), _names(backbone, above))


def _names(backbone: nn.Module, part: nn.Module) -> dict[str, str]:
    there = {id(module): name for name, module in part.named_modules()}
    return {n: there[id(m)] for n, m in backbone.named_modules() if id(m) in there}


class TowerBelow(nn.Module):
    """The first stages of a tower: images (n, 3, h, w) to a map."""

    def __init__(self, tower: Tower, above: int) -> None:
        super().__init__()
        model = tower.model
        # The stem has another name in each family.
        self.stem = getattr(model, "embedder", None) or model.get_submodule("embeddings")
        self.stages = nn.ModuleList(list(_tower_stages(tower) or ())[:-above])
        self.training = tower.training

    def forward(self, images: Tensor) -> Tensor:
        """Compute the map that the stages above take."""
        values: Tensor = self.stem(images)
        for stage in self.stages:
            values = stage(values)
        return values


class TowerAbove(nn.Module):
    """The last stages of a tower, and its pooling: a map to features (n, d)."""

    pretrained = True

    def __init__(self, tower: Tower, above: int) -> None:
        super().__init__()
        self.stages = nn.ModuleList(list(_tower_stages(tower) or ())[-above:])
        self.gem = tower.gem
        self.norm = getattr(tower.model, "layernorm", None)
        self.training = tower.training

    def forward(self, values: Tensor) -> Tensor:
        """Compute features (n, d)."""
        for stage in self.stages:
            values = stage(values)
        pooled: Tensor = values.mean(dim=(2, 3)) if self.gem is None else self.gem(values)
        return pooled if self.norm is None else self.norm(pooled)


def cut_backbone(backbone: nn.Module, above: int) -> Cut:
    """Cut a backbone.

    Args:
        backbone: Stays as it is.
        above: How many of its last stages lie above; 0 for none.

    Returns:
        Both parts.

    Raises:
        InputError: If it has no stages that are known, or not more than so many.
    """
    check_int("trained_stages", above, least=0)
    if above == 0:
        return Cut.of(backbone, backbone, nn.Identity())
    if isinstance(backbone, Tower) and (stages := _tower_stages(backbone)) is not None:
        _check_count(above, len(stages))
        return Cut.of(backbone, TowerBelow(backbone, above), TowerAbove(backbone, above))
    if type(backbone) is nn.Sequential:
        layers = dict(backbone.named_children())
        starts = [i for i, layer in enumerate(layers.values()) if _is_stage(layer)]
        _check_count(above, len(starts))
        names = list(layers)
        at = starts[-above]
        below, rest = (_part(backbone, chosen) for chosen in (names[:at], names[at:]))
        return Cut.of(backbone, below, rest)
    raise InputError(
        f"a {type(backbone).__name__} has no stages that are known here, so the last ones cannot be "
        "trained alone. Leave trained_stages at 0, or give a ResNet, a ConvNeXt or an nn.Sequential.",
        field="trained_stages",
    )


def _part(backbone: nn.Sequential, names: list[str]) -> nn.Sequential:
    part = nn.Sequential()
    for name in names:
        part.add_module(name, backbone.get_submodule(name))
    part.training = backbone.training
    return part


def _is_stage(layer: nn.Module) -> bool:
    return any(True for _ in layer.parameters()) and not isinstance(layer, (GeM, *NORMS))


def _tower_stages(tower: Tower) -> nn.ModuleList | None:
    stages = getattr(getattr(tower.model, "encoder", None), "stages", None)
    return stages if isinstance(stages, nn.ModuleList) else None


def _check_count(above: int, stages: int) -> None:
    if above >= stages:
        raise InputError(
            f"the network has {stages} stages, so up to {stages - 1} can be trained above a frozen part; "
            f"got {above}. To train all of it, do not freeze the backbone.",
            field="trained_stages",
        )


Watched = tuple[Embeddings | None, list[Tensor]]

PREFIX = "frozen"
HeadStart = Literal["given", "identity", "whitened-within"]
HEAD_STARTS = get_args(HeadStart)


@dataclass(frozen=True)
class Freezing:
    """How a backbone is frozen.

    Attributes:
        trained_stages: How many of its last stages still learn; their inputs are kept then, in half
            precision, which takes fifty times the room of features for a ResNet-50.
        views: Augmented views of each image that are computed beside the plain one, for training; 0 trains
            on the plain one alone.
        cache: Folder where features are kept for this training and later ones; None for the folder that
            `fit` is given, or memory if that is None too.
        head: What the head starts as: as it is "given"; the "identity", or with fewer outputs the principal
            components of the training features; or "whitened-within" classes or places, which makes
            differences between examples that belong together small (`surefind.learning.closed_form`). All
            but the first need as many outputs as features, or fewer.

    Raises:
        InputError: If a number is negative, or there is no such start.
    """

    trained_stages: int = 0
    views: int = 0
    cache: str | Path | None = None
    head: HeadStart = "given"

    def __post_init__(self) -> None:
        check_int("trained_stages", self.trained_stages, least=0)
        check_int("views", self.views, least=0)
        check_choice("head", self.head, HEAD_STARTS)

    @property
    def plan(self) -> dict[str, Any]:
        """What is saved with a model."""
        return {k: v for k, v in asdict(self).items() if k != "cache"}


@dataclass(frozen=True, eq=False)
class FrozenBackbone:
    """An encoder whose backbone is cut, and how its features are computed.

    Attributes:
        backbone: The whole of it.
        cut: Both parts; ``below`` in evaluation mode and without gradients.
        upper: The part above and the head, which a method trains on features.
        freezing: How it is frozen.
    """

    backbone: nn.Module
    cut: Cut
    upper: Encoder
    freezing: Freezing

    @classmethod
    def of(cls, encoder: Encoder, freezing: Freezing) -> "FrozenBackbone":
        """Cut an encoder, which keeps its mode and its gradients: these are parts of a copy."""
        backbone = copy.deepcopy(encoder.backbone)
        # Convolutions on CPUs are faster so; everything else does not care.
        backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        cut = cut_backbone(backbone, freezing.trained_stages)
        frozen(cut.below)
        return cls(backbone, cut, Encoder(cut.above, encoder.head), freezing)

    def features(
        self,
        dataset: Dataset,
        spec: InputSpec,
        *,
        stages: Sequence[str] | None = None,
        preprocessing: Preprocessing | None = None,
        seed: int = 0,
        folder: Path | None = None,
        workers: int = 2,
        on_rows: OnRows = lambda *_: None,
    ) -> Dataset:
        """Compute features of a data set once; those that are there already are taken as they are.

        Args:
            dataset: Images, or what a network takes; with features of this network it is returned as is.
            spec: What inputs the network takes.
            stages: Of the whole network; None for the rule of `surefind.models.layers`.
            preprocessing: How augmented views are made; None computes the plain one alone.
            seed: Decides these.
            folder: Where features are kept if ``freezing`` names no cache; None for memory.
            workers: Threads that read images ahead.
            on_rows: Called after each batch.

        Returns:
            The data set with `FeatureViews` as inputs.

        Raises:
            InputError: If the features are those of another network.
        """
        if isinstance(dataset.inputs, FeatureViews):
            check_features(dataset.inputs, self.cut.below)
            return dataset
        first = like_network(dataset.read(slice(0, 2), preprocessing=spec), self.cut.below)
        layers = self._layers(first, stages)
        places = self.cut.names_below
        below = {s: places[s] for s in layers.names if s in places and s != OUTPUT}
        views = self.freezing.views if preprocessing is not None else 0
        cache = self.freezing.cache
        made = FeaturePass(
            self.cut.below, spec, below, preprocessing, views, seed, workers, layers
        ).run(dataset, folder if cache is None else Path(cache), on_rows)
        return replace(made, inputs=replace(made.inputs, layers=layers))

    def _layers(self, inputs: Tensor, stages: Sequence[str] | None) -> Layers:
        modes = {module: module.training for module in self.backbone.modules()}
        self.backbone.eval()
        try:
            return Layers.of(self.backbone, inputs, stages, output=True)
        finally:
            for module, training in modes.items():
                module.training = training


@dataclass(frozen=True, eq=False)
class FrozenEmbedder:
    """A frozen part of a network under a fitted method, which takes its outputs as inputs.

    Attributes:
        backbone: The frozen part, and what was above it before training.
        upper: The fitted method.
    """

    backbone: FrozenBackbone
    upper: Embedder

    @property
    def cut(self) -> Cut:
        """Both parts of the backbone."""
        return self.backbone.cut

    @property
    def runs_network_once(self) -> bool:
        """Whether all of the network runs once."""
        return self.upper.runs_network_once

    @cached_property
    def network(self) -> Encoder:
        """The whole encoder, its backbone in two parts."""
        fitted = self.upper.network
        return frozen(Encoder(nn.Sequential(self.cut.below, fitted.backbone), fitted.head))

    def whole_encoder(self) -> Encoder:
        """Put what was learnt into a copy of the encoder that was frozen; for methods with one encoder."""
        fitted, backbone = self.upper.network, copy.deepcopy(self.backbone.backbone)
        cut = cut_backbone(backbone, self.backbone.freezing.trained_stages)
        load_state(cut.above, fitted.backbone.state_dict())
        return frozen(Encoder(backbone, copy.deepcopy(fitted.head)))

    def embed(self, inputs: Tensor) -> Embeddings:
        """Embed a batch of inputs."""
        return self.upper.embed(self.below(inputs))

    def sampler(self, n_samples: int, *, joint: bool, generator: torch.Generator) -> Sampler:
        """Return a function that draws samples of a batch of inputs."""
        draw = self.upper.sampler(n_samples, joint=joint, generator=generator)
        return lambda inputs: draw(self.below(inputs))

    def tensors(self) -> dict[str, Tensor]:
        """Return the method's tensors, and the frozen part's."""
        return self.upper.tensors() | prefixed(PREFIX, self.cut.below.state_dict())

    @torch.no_grad()
    def below(self, inputs: Tensor) -> Tensor:
        """Compute what the fitted method takes, in the precision that it was trained on."""
        features: Tensor = self.cut.below(inputs)
        return as_kept(features).to(features)

    def watched(self, inputs: Tensor, layers: Layers, *, own: bool) -> Watched:
        """Return what `watch_embedder` returns of a batch of inputs."""
        places = self.cut.names_below
        names = tuple(s for s in layers.names if s in places and s != OUTPUT)
        there = [places[s] for s in names]
        watch = StageWatch(self.cut.below, replace(layers, names=names), there)
        with watch.watching():
            features = self.below(inputs)
        known = dict(zip(names, watch.take(len(inputs)), strict=True))
        return self._watched_above(features, known, layers, own=own)

    def watched_features(
        self, views: FeatureViews, rows: np.ndarray, layers: Layers, *, own: bool
    ) -> Watched:
        """Do the same with features that were computed before, and the statistics beside them."""
        features = like_network(views.read(rows), self.upper.network)
        known = {s: views.stage(s, rows).to(features.device) for s in views.statistics}
        return self._watched_above(features, known, layers, own=own)

    def _watched_above(
        self, features: Tensor, known: Mapping[str, Tensor], layers: Layers, *, own: bool
    ) -> Watched:
        above = tuple(s for s in layers.names if s not in known)
        # Dropout wraps a network that is no sequence of layers.
        wrapped = "backbone" in dict(self.upper.network.backbone.named_children())
        inside = [self.cut.names_above.get(s, s) for s in above]
        if wrapped:
            inside = [s if s in (OUTPUT, HEAD) else f"backbone.{s}" for s in inside]
        there = encoder_places(inside)
        watch = StageWatch(self.upper.network, replace(layers, names=above), there)
        found, said = watch_embedder(self.upper, watch, features, own=own)
        seen = dict(zip(above, said, strict=True))
        return found, [known[s] if s in known else seen[s] for s in layers.names]


def watch_embedder(embedder: Embedder, watch: StageWatch, inputs: Tensor, *, own: bool) -> Watched:
    """Pass a batch through a watched network, once if its method does.

    Args:
        embedder: The method.
        watch: Of its network.
        inputs: The batch.
        own: Whether the method's own embeddings are wanted.

    Returns:
        These, or None; and what the stages said.
    """
    if own and embedder.runs_network_once:
        with watch.watching():
            found = embedder.embed(inputs)
        return found, watch.take(len(inputs))
    with torch.no_grad(), watch.watching():
        embedder.network.outputs(inputs)
    return embedder.embed(inputs) if own else None, watch.take(len(inputs))


@torch.no_grad()
def started(
    upper: Encoder, features: Dataset, start: HeadStart, radii: tuple[float, float]
) -> Encoder:
    """Let the head start as is wanted.

    A head without a bias is not centred.

    Args:
        upper: What is trained on features; stays as it is.
        features: The training data.
        start: As `Freezing.head`.
        radii: Where the data have positions: as `MetricLearner`'s.

    Returns:
        An encoder with that head.

    Raises:
        InputError: If there are more outputs than features; as a `DegenerateError`, if the head is to be
            whitened within places of equal examples.
    """
    if start == "given":
        return upper
    d, z = upper.head.in_features, upper.head.out_features
    if z > d:
        raise InputError(
            f"a head with {z} outputs of {d} features cannot start as the {start}; give it {d} outputs or "
            "fewer.",
            field="head",
        )
    if start == "identity" and z == d:
        head = torch.eye(d, d + 1)
    else:
        training = upper.backbone.training
        upper.backbone.eval()
        found = apply(upper.backbone, features, upper).double()
        upper.backbone.train(training)
        if start == "identity":
            directions = torch.linalg.eigh(found.T @ found).eigenvectors[:, -z:].T
            head = torch.cat([directions, directions.new_zeros(z, 1)], dim=1)
        else:
            near, far = radii
            own = as_relation(features.relation(positive_radius=near, negative_radius=far))
            head = closed_form_head(found, own.to(found.device), rows=z, field="head")
    columns = d if upper.head.bias is None else d + 1
    return upper.with_head(head[:, :columns].to(upper.head.weight))


def check_features(views: FeatureViews, network: nn.Module) -> None:
    """Refuse features that another network has computed."""
    if views.network != network_digest(network):
        raise InputError(
            "these features were computed with another network, or other weights. Compute them with this "
            "one: MetricLearner.features.",
            field="dataset",
        )
