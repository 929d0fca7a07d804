"""A backbone in two: the part below, which stays as it is, and the part above, which may learn.

    backbone = above ∘ below

With nothing to learn, the whole backbone lies below and the part above is the identity. Else the last
stages lie above, with the pooling after them. Stages are the residual stages of a ResNet or ConvNeXt, and
in an `nn.Sequential` its layers with parameters; a norm or a GeM belongs to the layer before it.

Both parts share their modules with the backbone that was cut: weights loaded into one are in the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from surefind.checks import check_int
from surefind.errors import InputError
from surefind.models.initialization import NORMS
from surefind.models.pooling import GeM
from surefind.models.towers import Tower


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
        self.stages = nn.ModuleList(list(_tower_stages(tower))[:-above])
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
        self.stages = nn.ModuleList(list(_tower_stages(tower))[-above:])
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
    if isinstance(backbone, Tower):
        stages = len(_tower_stages(backbone))
        _check_count(above, stages)
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


def _tower_stages(tower: Tower) -> nn.ModuleList:
    stages = getattr(getattr(tower.model, "encoder", None), "stages", None)
    if not isinstance(stages, nn.ModuleList):
        kind = tower.model.config.model_type  # type: ignore[union-attr]
        raise InputError(
            f"a network of the kind {kind} has no stages, so the last ones cannot be trained alone. Leave "
            "trained_stages at 0, or take a ResNet or ConvNeXt.",
            field="trained_stages",
        )
    return stages


def _check_count(above: int, stages: int) -> None:
    if above >= stages:
        raise InputError(
            f"the network has {stages} stages, so up to {stages - 1} can be trained above a frozen part; "
            f"got {above}. To train all of it, do not freeze the backbone.",
            field="trained_stages",
        )
