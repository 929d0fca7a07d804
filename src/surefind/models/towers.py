"""Image towers of `transformers`, from images to one vector each.

    family                     pooling, the first by default
    resnet                     gem, mean                  over the last map
    convnext, convnextv2       gem, mean                  over the last map, then the tower's own layer norm
    dinov2 (with registers)    cls, mean, gem             the class token, or the patches without it
    vit                        cls, mean, gem             the same
    clip                       projection, pooler         with the projection to the space of texts, or not
    siglip                     pooler, mean               the tower's attention pooling, or all patches

A tower is described by a plain dict, its *recipe* (the network's configuration, the pooling, the
preprocessing): with it and the weights, it is rebuilt without the files it once came from.

GeM clamps negative values, which ConvNeXt and DINOv2 have: "mean" keeps them.

Axes: ``n`` images, ``h`` and ``w`` pixels, ``t`` tokens, ``d`` features.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from surefind.checks import check_choice, require
from surefind.errors import InputError
from surefind.models.initialization import initialize, untouched_rng
from surefind.models.pooling import GeM


@dataclass(frozen=True)
class Family:
    """How one kind of network is read.

    Attributes:
        classes: The class in `transformers` for each pooling; the first pooling is the default.
        fixed_size: Whether images must have the size that it was trained with.
        options: What else the class is built with.
    """

    classes: Mapping[str, str]
    fixed_size: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


FAMILIES: Mapping[str, Family] = {
    "resnet": Family(dict.fromkeys(("gem", "mean"), "ResNetModel")),
    "convnext": Family(dict.fromkeys(("gem", "mean"), "ConvNextModel")),
    "convnextv2": Family(dict.fromkeys(("gem", "mean"), "ConvNextV2Model")),
    "dinov2": Family(dict.fromkeys(("cls", "mean", "gem"), "Dinov2Model")),
    "dinov2_with_registers": Family(
        dict.fromkeys(("cls", "mean", "gem"), "Dinov2WithRegistersModel")
    ),
    "vit": Family(
        dict.fromkeys(("cls", "mean", "gem"), "ViTModel"),
        fixed_size=True,
        options={"add_pooling_layer": False},
    ),
    "clip_vision_model": Family(
        {"projection": "CLIPVisionModelWithProjection", "pooler": "CLIPVisionModel"},
        fixed_size=True,
    ),
    "siglip_vision_model": Family(
        dict.fromkeys(("pooler", "mean"), "SiglipVisionModel"), fixed_size=True
    ),
}


class Tower(nn.Module):
    """A network of `transformers` with pooling: images (n, 3, h, w) to features (n, d).

    Args:
        model: The network.
        pooling: One of its family's.
        preprocessing: What it expects of images, see `surefind.models.backbones`; None if
            unknown.

    Attributes:
        preprocessing: As given.
        width: Number of features d.
    """

    pretrained = True
    """Usually; so that the members of an ensemble differ in their heads alone."""

    def __init__(
        self, model: nn.Module, pooling: str, preprocessing: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__()
        config: Any = model.config
        self.model = model
        self.pooling = pooling
        self.gem = GeM().train(model.training) if pooling == "gem" else None
        self.preprocessing = None if preprocessing is None else dict(preprocessing)
        self.training = model.training
        if pooling == "projection":
            self.width = int(config.projection_dim)
        else:
            sizes = getattr(config, "hidden_sizes", None)
            self.width = int(sizes[-1] if sizes else config.hidden_size)

    @property
    def recipe(self) -> dict[str, Any]:
        """What `tower_of` builds the same network from, without weights; JSON can hold it."""
        config: Any = self.model.config
        return {
            "config": config.to_diff_dict() | {"model_type": config.model_type},
            "pooling": self.pooling,
            "preprocessing": self.preprocessing,
        }

    def forward(self, images: Tensor) -> Tensor:
        """Compute features (n, d) of preprocessed images (n, 3, h, w)."""
        config: Any = self.model.config
        if images.ndim != 4 or images.shape[1] != config.num_channels:
            raise InputError(
                f"images must be (n, {config.num_channels}, height, width); "
                f"got {tuple(images.shape)}."
            )
        side = config.image_size if FAMILIES[config.model_type].fixed_size else None
        if side is not None and tuple(images.shape[2:]) != (side, side):
            raise InputError(
                f"this {config.model_type} takes images of {side} × {side} pixels; got "
                f"{images.shape[2]} × {images.shape[3]}. Resize and crop them first."
            )
        answer = self.model(pixel_values=images, return_dict=True)
        return self._pooled(answer)

    def _pooled(self, answer: Any) -> Tensor:
        direct = {"projection": "image_embeds", "pooler": "pooler_output"}
        if self.pooling in direct:
            pooled: Tensor = getattr(answer, direct[self.pooling])
            return pooled
        values: Tensor = answer.last_hidden_state
        if self.pooling == "cls":
            return values[:, 0]
        config: Any = self.model.config
        if config.model_type.startswith(("dinov2", "vit")):
            values = values[:, 1 + getattr(config, "num_register_tokens", 0) :]
        if self.gem is not None:
            pooled = self.gem(values)
        else:
            pooled = values.mean(dim=(2, 3) if values.ndim == 4 else 1)
        if config.model_type.startswith("convnext"):
            pooled = self.model.get_submodule("layernorm")(pooled)
        return pooled


def tower_of(recipe: Mapping[str, Any], *, generator: torch.Generator | None = None) -> Tower:
    """Build a tower from its recipe.

    Args:
        recipe: From `Tower.recipe`; "pooling" may be "auto" and "preprocessing" may be left out.
        generator: Draws the weights, for a network of convolutions. None: they are arbitrary, to be
            loaded.

    Returns:
        The tower, in evaluation mode.
    """
    config = dict(recipe["config"])
    kind = config.pop("model_type")
    family = family_of(kind)
    pooling = chosen_pooling(kind, recipe["pooling"])
    transformers = library()
    network = getattr(transformers, family.classes[pooling])
    with untouched_rng():
        model = network(network.config_class(**config), **family.options).eval()
    tower = Tower(model, pooling, recipe.get("preprocessing"))
    if generator is not None:
        initialize(tower, generator)
    return tower


def family_of(kind: str) -> Family:
    """Look up a family by the ``model_type`` of its configuration, for example "resnet"."""
    if kind not in FAMILIES:
        raise InputError(
            f"no tower for model_type {kind!r}; there are {', '.join(FAMILIES)}.",
            field="kind",
            hint="In Python, wrap the network in an nn.Module from images to features (n, d) and pass "
            "that as the backbone.",
        )
    return FAMILIES[kind]


def chosen_pooling(kind: str, pooling: str) -> str:
    """Resolve "auto" and refuse a pooling that the family does not have."""
    choices = list(FAMILIES[kind].classes)
    if pooling == "auto":
        return choices[0]
    check_choice(f"pooling of {kind}", pooling, choices)
    return pooling


def library() -> Any:
    """Import `transformers`, which is optional."""
    return require("transformers", "read pretrained backbones", extra="backbones")
