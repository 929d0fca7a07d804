"""A convolutional network as plain data: a list of nodes, for networks that `transformers` does not have.

A node has a name, a kind (`KINDS`), the names of the nodes whose outputs it takes (`IMAGES` is the batch
that comes in), and the arguments of its layer:

    {"name": "conv0", "kind": "conv", "inputs": ["images"], "arguments": {"in_channels": 3, …}}

Nodes run in the order in which they are listed, and the last one's output is the network's. JSON can hold
the list; with it and the weights (``layers.conv0.weight``, …) the network is rebuilt without any code.

Where a graph ends with a map, a pooling is appended as its last nodes, "gem" by default or "mean"; "own"
keeps the end that it has, which is a vector then. A graph that ends with pooling or flattening alone may
have it exchanged.

Axes: ``n`` images, ``c`` channels, ``h`` and ``w`` positions of a map, ``d`` features.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from surefind.checks import check_choice
from surefind.errors import InputError
from surefind.models.initialization import untouched_rng
from surefind.models.pooling import GeM

IMAGES = "images"
TRIAL_SIDE = 224
"""Side of the images by which shapes are found, where the network takes any."""


class Add(nn.Module):
    """The sum of two outputs."""

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        """Add, with broadcasting."""
        return one + other


class Multiply(nn.Module):
    """The product of two outputs, as in squeeze and excitation."""

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        """Multiply, with broadcasting."""
        return one * other


class Affine(nn.Module):
    """Scale and shift each channel: y_c = a_c x_c + b_c.

    Args:
        num_features: Number of channels.
    """

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))

    def forward(self, values: Tensor) -> Tensor:
        """Apply it to maps (n, c, h, w) or vectors (n, c)."""
        column = (1, -1) + (1,) * (values.ndim - 2)
        return values * self.weight.view(column) + self.bias.view(column)


class SamePad(nn.Module):
    """Zeros around a map, so that a convolution with stride s gives ⌈size / s⌉ positions.

    An odd number of them has the greater part below and on the right, as TensorFlow's "SAME" has.

    Args:
        kernel_size: The convolution's, vertical and horizontal.
        stride: Likewise.
        dilation: Likewise.
    """

    def __init__(
        self, kernel_size: Sequence[int], stride: Sequence[int], dilation: Sequence[int] = (1, 1)
    ) -> None:
        super().__init__()
        self.reach = [(k - 1) * d + 1 for k, d in zip(kernel_size, dilation, strict=True)]
        self.stride = list(stride)

    def forward(self, maps: Tensor) -> Tensor:
        """Pad maps (n, c, h, w)."""
        sizes = maps.shape[2:]
        missing = [
            max((-(-size // s) - 1) * s + r - size, 0)
            for size, s, r in zip(sizes, self.stride, self.reach, strict=True)
        ]
        (top, left), (down, right) = [m // 2 for m in missing], [m - m // 2 for m in missing]
        return pad(maps, (left, right, top, down))


KINDS: Mapping[str, type[nn.Module]] = {
    "conv": nn.Conv2d,
    "linear": nn.Linear,
    "batch_norm": nn.BatchNorm2d,
    "batch_norm_1d": nn.BatchNorm1d,
    "affine": Affine,
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "leaky_relu": nn.LeakyReLU,
    "prelu": nn.PReLU,
    "sigmoid": nn.Sigmoid,
    "hard_sigmoid": nn.Hardsigmoid,
    "hard_swish": nn.Hardswish,
    "add": Add,
    "multiply": Multiply,
    "max_pool": nn.MaxPool2d,
    "average_pool": nn.AvgPool2d,
    "mean_pool": nn.AdaptiveAvgPool2d,
    "gem": GeM,
    "flatten": nn.Flatten,
    "pad": nn.ZeroPad2d,
    "same_pad": SamePad,
}

POOLINGS: Mapping[str, Sequence[tuple[str, dict[str, Any]]]] = {
    "gem": [("gem", {})],
    "mean": [("mean_pool", {"output_size": 1}), ("flatten", {})],
    "own": [],
}


def node(name: str, kind: str, *inputs: str, **arguments: Any) -> dict[str, Any]:
    """Write down a node."""
    return {"name": name, "kind": kind, "inputs": list(inputs), "arguments": arguments}


class GraphNet(nn.Module):
    """A network of nodes: images (n, c, h, w) to features (n, d).

    Args:
        nodes: As above.
        image_shape: Channels, height and width of an image; height and width are None if any will do.
        preprocessing: What it expects of images, see `surefind.models.backbones`; None if unknown.

    Attributes:
        preprocessing: As given.
        width: Number of features d.

    Raises:
        InputError: If a node cannot be built or does not fit those before it, or the last one's output is
            not a vector.
    """

    def __init__(
        self,
        nodes: Sequence[Mapping[str, Any]],
        image_shape: Sequence[int | None],
        preprocessing: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.nodes = [dict(n) for n in nodes]
        self.image_shape = tuple(image_shape)
        self.preprocessing = None if preprocessing is None else dict(preprocessing)
        shape = output_shape(nodes, image_shape)
        if len(shape) != 1:
            raise InputError(
                f"the graph ends with maps {shape}; append a pooling, 'gem' or 'mean'.",
                field="pooling",
            )
        self.width = shape[0]
        with untouched_rng():
            self.layers = nn.ModuleDict({n["name"]: layer_of(n) for n in nodes})
        last_use = {name: i for i, n in enumerate(nodes) for name in n["inputs"]}
        self._finished = [
            [k for k, last in last_use.items() if last == i] for i in range(len(nodes))
        ]

    @property
    def recipe(self) -> dict[str, Any]:
        """What `graph_of` builds the same network from, without weights; JSON can hold it."""
        return {
            "nodes": self.nodes,
            "image_shape": list(self.image_shape),
            "preprocessing": self.preprocessing,
        }

    def forward(self, images: Tensor) -> Tensor:
        """Compute features (n, d) of preprocessed images (n, c, h, w)."""
        expected = self.image_shape
        fits = images.ndim == 4 and all(
            e in (None, s) for e, s in zip(expected, images.shape[1:], strict=True)
        )
        if not fits:
            sides = [
                str(e) if e else side
                for e, side in zip(expected[1:], ("height", "width"), strict=True)
            ]
            raise InputError(
                f"images must be (n, {expected[0]}, {', '.join(sides)}); got {tuple(images.shape)}. "
                "Resize and crop them first."
            )
        values = {IMAGES: images}
        for one, finished in zip(self.nodes, self._finished, strict=True):
            values[one["name"]] = self.layers[one["name"]](*(values[i] for i in one["inputs"]))
            for name in finished:  # maps are large
                del values[name]
        return values[self.nodes[-1]["name"]]


def graph_of(recipe: Mapping[str, Any]) -> GraphNet:
    """Build a network, in evaluation mode, from `GraphNet.recipe`; its weights are to be loaded."""
    return GraphNet(recipe["nodes"], recipe["image_shape"], recipe.get("preprocessing")).eval()


def with_pooling(
    nodes: Sequence[Mapping[str, Any]], image_shape: Sequence[int | None], pooling: str
) -> list[dict[str, Any]]:
    """Let a graph end as a pooling says.

    Args:
        nodes: The graph.
        image_shape: As of `GraphNet`.
        pooling: "gem", "mean", "own", or "auto": "own" for a vector and "gem" for a map.

    Returns:
        The nodes, whose last output is a vector.

    Raises:
        InputError: If the graph ends with something that cannot be pooled.
    """
    ends_with_vector = len(output_shape(nodes, image_shape)) == 1
    if pooling == "auto":
        pooling = "own" if ends_with_vector else "gem"
    check_choice("pooling of a graph", pooling, POOLINGS)
    kept = [dict(n) for n in nodes]
    if pooling != "own" and ends_with_vector:
        kept = _without_pooling(kept)
        if not kept or len(output_shape(kept, image_shape)) != 3:
            raise InputError(
                f"pooling={pooling!r} needs a network that ends with maps; this one gives a vector by "
                "layers of its own. Use pooling='own'.",
                field="pooling",
            )
    for kind, arguments in POOLINGS[pooling]:
        before = kept[-1]["name"]
        kept.append(node(f"pooling_{kind}", kind, before, **arguments))
    return kept


def _without_pooling(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kept = list(nodes)
    while kept and kept[-1]["kind"] in ("flatten", "mean_pool", "gem"):
        kept.pop()
    return kept


def layer_of(one: Mapping[str, Any]) -> nn.Module:
    """Build a node's layer, with arbitrary weights.

    Args:
        one: The node.

    Returns:
        The layer.

    Raises:
        InputError: If the kind is not known, or does not take the arguments.
    """
    if one["kind"] not in KINDS:
        raise InputError(
            f"node {one['name']!r} is of kind {one['kind']!r}; there are {', '.join(KINDS)}.",
            field="nodes",
        )
    arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in one["arguments"].items()}
    try:
        return KINDS[one["kind"]](**arguments)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"node {one['name']!r} ({one['kind']}) cannot be built: {error}.", field="nodes"
        ) from error


def output_shape(
    nodes: Sequence[Mapping[str, Any]], image_shape: Sequence[int | None]
) -> tuple[int, ...]:
    """Return the shape of the last output for one image, without its batch axis; nothing is computed.

    Args:
        nodes: The graph.
        image_shape: As of `GraphNet`.

    Returns:
        (d,) or (c, h, w).

    Raises:
        InputError: If there is no node, or one does not fit those before it.
    """
    if not nodes:
        raise InputError("a graph needs at least one node.", field="nodes")
    values = {IMAGES: trial_images(image_shape)}
    for one in nodes:
        values[one["name"]] = trial(one, values)
    return tuple(values[nodes[-1]["name"]].shape[1:])


def trial_images(image_shape: Sequence[int | None]) -> Tensor:
    """Make two images without values."""
    channels, *sides = image_shape
    return torch.empty(2, channels or 1, *(s or TRIAL_SIDE for s in sides), device="meta")


def trial(one: Mapping[str, Any], values: Mapping[str, Tensor]) -> Tensor:
    """Apply a node to tensors without values, for the shape of its output.

    Args:
        one: The node.
        values: The outputs before it, by name.

    Returns:
        Its output, without values.

    Raises:
        InputError: If the node's name is taken or cannot be one, or its layer does not take its inputs.
    """
    name = one["name"]
    if name in values or not name.isidentifier() or hasattr(nn.ModuleDict, name):
        raise InputError(
            f"{name!r} cannot be a node's name: take letters and digits, such as 'conv0', that no node "
            "before it has.",
            field="nodes",
        )
    if unknown := [i for i in one["inputs"] if i not in values]:
        raise InputError(
            f"node {name!r} takes {unknown[0]!r}, and no node before it has that name.",
            field="nodes",
        )
    taken = [values[i] for i in one["inputs"]]
    with torch.device("meta"):
        layer = layer_of(one).eval()
    try:
        with torch.no_grad():
            return layer(*taken)  # type: ignore[no-any-return]
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        shapes = " and ".join(str(tuple(t.shape[1:])) for t in taken)
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"node {name!r} ({one['kind']}) does not fit its inputs {shapes}: {reason}.",
            field="nodes",
        ) from error
