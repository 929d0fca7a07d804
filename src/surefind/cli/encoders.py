"""Which network `surefind train` builds: one by name, or a backbone from a folder under a new head."""

from typing import TYPE_CHECKING

from surefind.errors import InputError

if TYPE_CHECKING:
    from surefind.data.dataset import Dataset
    from surefind.data.preprocessing import Preprocessing
    from surefind.models.encoder import Encoder

FITTING = {"fashion-mnist": "fashion-mnist", "cifar10": "cifar10", "digits": "small"}
"""The network that "auto" takes for a set; for images in files, the small one."""
SIDES = {"fashion-mnist": 28, "cifar10": 32, "small": 64}
"""To which the networks by name have images in files resized."""


def chosen_encoder(
    kind: str, source: str, dataset: "Dataset", dim: int | None, seed: int
) -> "tuple[Encoder, Preprocessing | None]":
    """Build the network that was asked for, or that fits the set.

    Args:
        kind: "auto", "fashion-mnist", "cifar10", "small", or a backbone's folder.
        source: The set's name, or a path.
        dataset: What it will be trained on.
        dim: Dimension of the embedding; None for the network's own choice.
        seed: Decides the weights of the head.

    Returns:
        The network, and what it wants of images.

    Raises:
        InputError: If "auto" knows no network for the set.
    """
    from surefind.data.images import ImageFiles
    from surefind.data.preprocessing import Preprocessing
    from surefind.models.backbones import load_backbone, with_linear_head
    from surefind.models.convnets import cifar10_net, fashion_mnist_net, small_net
    from surefind.seeds import seeded

    files = isinstance(dataset.inputs, ImageFiles)
    if kind == "auto":
        kind = FITTING.get(source, "small" if files else "")
    generator = seeded(seed, "encoder")
    resized = (
        Preprocessing(resize=SIDES[kind], crop=SIDES[kind]) if files and kind in SIDES else None
    )
    if kind == "fashion-mnist":
        return fashion_mnist_net(dim or 3, generator=generator), resized
    if kind == "cifar10":
        return cifar10_net(dim or 16, generator=generator), resized
    if kind == "small":
        shape = dataset.read(slice(0, 1), preprocessing=resized).shape
        if len(shape) != 4:
            raise InputError(
                f"--encoder small is for images; {dataset.name} holds vectors. Use `surefind fit`."
            )
        return small_net(shape[1], shape[2], dim or 8, generator=generator), resized
    if not kind:
        raise InputError(
            "no encoder fits this set by itself; name one: --encoder FOLDER, with a backbone's "
            "config.json and safetensors weights, or fashion-mnist, cifar10, small."
        )
    tower = load_backbone(kind)
    wanted = None if tower.preprocessing is None else Preprocessing.from_dict(tower.preprocessing)
    return with_linear_head(tower, dim, generator=generator), wanted
