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

Pretrained backbones, and what they expect of images.

A backbone comes from a folder (``config.json``, ``*.safetensors``, ``preprocessor_config.json``) or by its
name on the Hugging Face hub. Nothing is fetched unless ``download=True``: without it a name is looked up
among the files that are already on this machine. Weights in pickle files are refused, because opening one
can run anything; so is code that comes with a model. Weights are read as float32, however they are stored.
A file in ONNX is run by onnxruntime, frozen (`surefind.models.onnx_encoder`).

Every parameter must be in the files: a checkpoint that lacks some would start with arbitrary ones.

What a network expects of its images is read from the files beside its weights, as a plain dict in the words
of `surefind.data.inputs.Preprocessing`:

    resize         length that the shorter side gets
    crop           side of the square cut from the centre, which the network sees
    mean, std      per channel, of values between 0 and 1
    interpolation  "bilinear" or "bicubic"

Publishers write sizes in several ways (a number, an edge, height and width, an edge and the share of it
that the crop keeps); they are brought to this one form. A network that was trained on images squeezed to
a square (SigLIP, large ConvNeXt) gets the centre of undistorted ones. If a size or a statistic is not
written down, or is not square, the answer is None rather than a guess: wrong ones cost accuracy without
an error. Only the interpolation has a default, "bicubic", which is that of all the families of
`surefind.models.backbones`.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from surefind.checks import check_choice, check_int, require
from surefind.errors import InputError
from surefind.models.encoder import Encoder, empty_head
from surefind.models.networks import GeM, initialize, untouched_rng
from surefind.models.onnx_encoder import OnnxNet


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


BILINEAR = 2
"""The number that Pillow has for it, which is what the files hold."""

UNCROPPED_FROM = 384
"""ConvNeXt's rule: images of this size and above are not cropped."""


def image_format(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Bring a ``preprocessor_config.json`` to the form above.

    Args:
        config: Its content; or that of a ``processor_config.json``, which holds it one level down.

    Returns:
        The dict, or None if something is not written down.
    """
    config = config.get("image_processor", config)
    mean, std = config.get("image_mean"), config.get("image_std")
    if config.get("do_normalize") is False:
        mean, std = [0.0] * 3, [1.0] * 3
    resize, crop = _sizes(config)
    if mean is None or std is None or resize is None or crop is None:
        return None
    return {
        "resize": resize,
        "crop": crop,
        "mean": [float(v) for v in mean],
        "std": [float(v) for v in std],
        "interpolation": "bilinear" if config.get("resample") == BILINEAR else "bicubic",
    }


def _sizes(config: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return what to resize the shorter side to, and the side of the crop."""
    edge = _side(config.get("size"))
    share = config.get("crop_pct")
    if edge is not None and share is not None:
        return (edge if edge >= UNCROPPED_FROM else int(edge / share)), edge
    if "crop_size" in config and config.get("do_center_crop", True):
        return edge, _side(config["crop_size"])
    return edge, edge


def _side(size: Any) -> int | None:
    if not isinstance(size, Mapping):
        return None if size is None else int(size)
    if "shortest_edge" in size:
        return int(size["shortest_edge"])
    height, width = size.get("height"), size.get("width")
    return int(height) if height is not None and height == width else None


FILES = (
    "config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "model.safetensors",
    "model-*.safetensors",
    "model.safetensors.index.json",
)
"""What is fetched of a model: no pickles, no code."""

Backbone = Tower | OnnxNet
"""Images, or what it takes, to features, with ``width`` and ``preprocessing``."""


def load_backbone(source: str | Path, *, pooling: str = "auto", download: bool = False) -> Backbone:
    """Load a pretrained network: an image tower of `transformers`, or an ONNX file.

    Towers are ResNet, ConvNeXt, DINOv2, ViT, CLIP and SigLIP. An ONNX file cannot learn: onnxruntime
    computes its features.

    Args:
        source: A folder, a file ``*.onnx``, or a name on the hub such as "facebook/dinov2-small".
        pooling: "auto" for the family's own, or another one of it: see `surefind.models.backbones`
            and `surefind.models.onnx_encoder`.
        download: Whether a name may be fetched from the hub.

    Returns:
        The network, in evaluation mode: images (n, 3, h, w) to features (n, d), with ``preprocessing``.
        For an ONNX file this is None, unless a ``preprocessor_config.json`` lies beside it.

    Raises:
        InputError: If files are missing, damaged, pickled, or of a network that cannot be read.
    """
    if Path(source).suffix == ".onnx":
        preprocessing = _preprocessing(Path(source).parent)
        return OnnxNet.load(source, pooling=pooling, preprocessing=preprocessing)
    folder = _folder(source, download=download)
    transformers = library()
    try:
        config = transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        config = getattr(config, "vision_config", config)
        family = family_of(config.model_type)
        pooling = chosen_pooling(config.model_type, pooling)
        network = getattr(transformers, family.classes[pooling])
        with untouched_rng(), _quiet(transformers):
            model, report = network.from_pretrained(
                folder,
                config=config,
                local_files_only=True,
                use_safetensors=True,
                dtype=torch.float32,
                output_loading_info=True,
                **family.options,
            )
    except InputError:
        raise
    except Exception as error:  # safetensors, torch and transformers each have their own
        raise InputError(
            f"the files in {folder} cannot be read ({_first_line(error)}). A folder needs config.json and "
            "*.safetensors of one network; weights in pickles (*.bin) are refused, because opening one can "
            "run anything. Copy the folder again.",
            field="source",
        ) from error
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise InputError(
            f"the weights of {source} lack {len(missing)} of the network's parameters, such as "
            f"{missing[0]}. They are of another network than config.json says, or pooling={pooling!r} "
            "needs a part that was not saved.",
            field="source",
        )
    return Tower(model, pooling, _preprocessing(folder))


def with_linear_head(
    tower: Backbone, embedding_dim: int | None = None, *, generator: torch.Generator
) -> Encoder:
    """Put a linear layer, as wide as the backbone by default, on a backbone; the encoder is in its mode."""
    z = tower.width if embedding_dim is None else embedding_dim
    check_int("embedding_dim", z, least=1)
    head = empty_head(tower.width, z, bias=True)
    initialize(head, generator)
    encoder = Encoder(tower, head.train(tower.training))
    encoder.training = tower.training
    return encoder


def _folder(source: str | Path, *, download: bool) -> Path:
    """Find the folder that holds a source's files, on this machine unless a download is allowed."""
    if Path(source).is_dir():
        return Path(source)
    library()  # which brings the hub's
    hub = import_module("huggingface_hub")
    try:
        if download:
            return Path(hub.snapshot_download(str(source), allow_patterns=FILES))
        # A look at the disk alone: the hub's own offline look-up may still use the network.
        return Path(hub.try_to_load_from_cache(str(source), "config.json")).parent
    except (
        Exception
    ) as error:  # of the hub, of HTTP, of the disk; of names that the hub cannot have
        reason = f"could not be fetched ({_first_line(error)})" if download else "is not here"
        raise InputError(
            f"{source} is no folder, and as a model of the Hugging Face hub it {reason}. Give a folder "
            "with config.json, model.safetensors and preprocessor_config.json; or fetch it with "
            f"`hf download {source}` or download=True.",
            field="source",
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _preprocessing(folder: Path) -> dict[str, Any] | None:
    for name in ("preprocessor_config.json", "processor_config.json"):
        if not (folder / name).is_file():
            continue
        try:
            found = image_format(json.loads((folder / name).read_text(encoding="utf-8")))
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError(
                f"{name} in {folder} cannot be read ({error}). Copy it again, or remove it and "
                "give the preprocessing yourself."
            ) from error
        if found is not None:
            return found
    return None


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Keep the library from reporting the text tower that we leave out on purpose."""
    log = transformers.utils.logging
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()
