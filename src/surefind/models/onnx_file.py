"""Encoders in ONNX files, read as a network of nodes (`surefind.models.graph`) that can be trained.

An operator becomes a node if its meaning is that of a layer; those of `OPERATORS` do. What they may be:

- one image input (n, c, h, w), and one output;
- weights stored in the file, not computed;
- `Clip` as ReLU or ReLU6, `Reshape` and `Squeeze` as flattening, `ReduceMean` over the positions;
- `Add`, `Sub`, `Mul` and `Div` of two outputs (the first and third) or by a constant per channel.

Anything else is refused with the operator's name; `surefind.models.onnx_runtime` runs it as it is, frozen.
Operators that do nothing at inference (`Identity`,
`Dropout`) leave no node. A file says nothing about preprocessing.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefind.checks import require
from surefind.errors import InputError
from surefind.models.graph import IMAGES, node, trial, trial_images

HARD_SIGMOID_SLOPE = 1 / 6
"""Of PyTorch's, and of no other that exporters write."""


class UnsupportedGraphError(InputError):
    """A graph is whole, and cannot be read as layers."""


def read_onnx(path: Path) -> tuple[list[dict[str, Any]], list[int | None], dict[str, Tensor]]:
    """Read an ONNX file.

    Args:
        path: The file.

    Returns:
        The nodes and the shape of an image, as `surefind.models.graph.GraphNet` takes them, and the
        weights by their names in it.

    Raises:
        InputError: If the file is damaged; as an `UnsupportedGraphError`, if it holds what has no node.
    """
    onnx = require("onnx", "read ONNX files", extra="onnx")
    try:
        model = onnx.load(path)
        onnx.checker.check_model(model)
    except Exception as error:  # of protobuf, of the checker, of the disk
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"{path} cannot be read as ONNX ({reason}). Copy or export it again.", field="source"
        ) from error
    reader = _Reader(path.name, onnx, model.graph)
    for operator in model.graph.node:
        reader.read(operator)
    return reader.finished(), reader.image_shape, reader.weights


class _Reader:
    """What has been read so far.

    Attributes:
        nodes: The nodes.
        weights: Tensors by their names in the network.
        image_shape: Channels, height, width; the last two None if they are free.
    """

    def __init__(self, file: str, onnx: Any, graph: Any) -> None:
        self._file, self._onnx, self._graph = file, onnx, graph
        self.constants = {i.name: onnx.numpy_helper.to_array(i) for i in graph.initializer}
        self.nodes: list[dict[str, Any]] = []
        self.weights: dict[str, Tensor] = {}
        images = [i for i in graph.input if i.name not in self.constants]
        if len(images) != 1 or len(graph.output) != 1:
            raise UnsupportedGraphError(
                f"{file} has {len(images)} inputs and {len(graph.output)} outputs; an encoder has one "
                "of each. Export the part from images to embeddings.",
                field="source",
            )
        sides = [d.dim_value or None for d in images[0].type.tensor_type.shape.dim]
        if len(sides) != 4 or sides[1] is None:
            raise UnsupportedGraphError(
                f"the input of {file} has the shape {sides}; images (n, c, height, width) with a "
                "known number of channels are expected.",
                field="source",
            )
        self.image_shape: list[int | None] = sides[1:]
        self.values = {IMAGES: trial_images(self.image_shape)}
        self.names = {images[0].name: IMAGES}
        """The node whose output a value of the file is."""

    def read(self, operator: Any) -> None:
        """Read the next operator."""
        helper = self._onnx.helper
        attributes = {a.name: helper.get_attribute_value(a) for a in operator.attribute}
        if operator.op_type == "Constant" and "value" in attributes:
            value = self._onnx.numpy_helper.to_array(attributes["value"])
            self.constants[operator.output[0]] = value
            return
        if operator.op_type not in OPERATORS or operator.domain not in ("", "ai.onnx"):
            raise UnsupportedGraphError(
                f"{self._file} has the operator {operator.op_type} ({operator.name or 'unnamed'}), which "
                f"is not supported; those that are: {', '.join(OPERATORS)}.",
                field="source",
                hint="Export the network again with its weights folded in (constant folding), or build "
                "it in PyTorch and pass it as the backbone of an Encoder.",
            )
        OPERATORS[operator.op_type](self, _Operator(self, operator, attributes))

    def add(
        self, kind: str, inputs: list[str], weights: Mapping[str, np.ndarray], **arguments: Any
    ) -> str:
        """Add a node with its weights; return its name."""
        one = node(f"{kind}{len(self.nodes)}", kind, *inputs, **arguments)
        self.values[one["name"]] = trial(one, self.values)
        self.nodes.append(one)
        for part, value in weights.items():
            # A copy: arrays of the file cannot be written to.
            tensor = torch.from_numpy(np.array(value, dtype=np.float32))
            self.weights[f"layers.{one['name']}.{part}"] = tensor
        return str(one["name"])

    def finished(self) -> list[dict[str, Any]]:
        """Return the nodes up to the output."""
        last = self.names.get(self._graph.output[0].name)
        if last is None or last == IMAGES or last != self.nodes[-1]["name"]:
            raise UnsupportedGraphError(
                f"the output of {self._file} is not what its last operator computes. "
                "Export the part from images to embeddings.",
                field="source",
            )
        return self.nodes


class _Operator:
    """One operator of a file, with its inputs resolved."""

    def __init__(self, reader: _Reader, operator: Any, attributes: dict[str, Any]) -> None:
        self.reader, self.operator, self.attributes = reader, operator, attributes
        self.names = list(operator.input)

    def input(self, i: int) -> str:
        """Return the node that computes an input."""
        name = self.names[i]
        if name not in self.reader.names:
            raise self.refusal(f"input {name!r}, which is not computed from images")
        return self.reader.names[name]

    def shape(self, i: int) -> tuple[int, ...]:
        """Return the shape of a computed input for one image."""
        return tuple(self.reader.values[self.input(i)].shape[1:])

    def constant(self, i: int) -> np.ndarray | None:
        """Return an input that is stored in the file; None if it is left out."""
        if i >= len(self.names) or not self.names[i]:
            return None
        if self.names[i] not in self.reader.constants:
            raise self.refusal("weights that are computed by other operators")
        return np.asarray(self.reader.constants[self.names[i]])

    def is_constant(self, i: int) -> bool:
        """Tell whether an input is stored in the file."""
        return self.names[i] in self.reader.constants

    def setting(self, name: str, default: Any = None) -> Any:
        """Return an attribute."""
        return self.attributes.get(name, default)

    def become(
        self,
        kind: str,
        *inputs: str,
        weights: Mapping[str, np.ndarray | None] | None = None,
        **arguments: Any,
    ) -> None:
        """Let a node compute the operator's output."""
        found = {k: v for k, v in (weights or {}).items() if v is not None}
        self.reader.names[self.operator.output[0]] = self.reader.add(
            kind, list(inputs), found, **arguments
        )

    def vanish(self) -> None:
        """Let the operator's output be its input."""
        output = self.operator.output[0]
        if self.is_constant(0):
            self.reader.constants[output] = self.reader.constants[self.names[0]]
        else:
            self.reader.names[output] = self.input(0)

    def refusal(self, what: str) -> UnsupportedGraphError:
        """Say what of the operator is not supported."""
        return UnsupportedGraphError(
            f"{self.reader._file} has {self.operator.op_type} ({self.operator.name or 'unnamed'}) with "
            f"{what}, which is not supported.",
            field="source",
            hint="Export the network again with its weights folded in (constant folding), or build it in "
            "PyTorch and pass it as the backbone of an Encoder.",
        )


def _conv(reader: _Reader, op: _Operator) -> None:
    weight, bias = op.constant(1), op.constant(2)
    if weight is None or weight.ndim != 4:
        raise op.refusal("a kernel that is not two-dimensional")
    kernel, groups = list(weight.shape[2:]), int(op.setting("group", 1))
    stride, dilation = op.setting("strides", [1, 1]), op.setting("dilations", [1, 1])
    source, padding = op.input(0), [0, 0]
    how = op.setting("auto_pad", b"NOTSET").decode()
    top, left, down, right = op.setting("pads", [0] * 4)
    if how == "SAME_UPPER":
        source = reader.add(
            "same_pad", [source], {}, kernel_size=kernel, stride=stride, dilation=dilation
        )
    elif how == "SAME_LOWER":
        raise op.refusal("auto_pad SAME_LOWER")
    elif how == "NOTSET" and (top, left) == (down, right):
        padding = [top, left]
    elif how == "NOTSET":
        source = reader.add("pad", [source], {}, padding=[left, right, top, down])
    op.become(
        "conv",
        source,
        weights={"weight": weight, "bias": bias},
        in_channels=weight.shape[1] * groups,
        out_channels=weight.shape[0],
        kernel_size=kernel,
        stride=list(stride),
        padding=padding,
        dilation=list(dilation),
        groups=groups,
        bias=bias is not None,
    )


def _gemm(reader: _Reader, op: _Operator) -> None:
    weight, bias = op.constant(1), op.constant(2)
    scaled = op.setting("alpha", 1.0) != 1 or (bias is not None and op.setting("beta", 1.0) != 1)
    if weight is None or scaled or op.setting("transA", 0):
        raise op.refusal("a scaled or transposed input")
    _linear(op, weight if op.setting("transB", 0) else weight.T, bias)


def _matmul(reader: _Reader, op: _Operator) -> None:
    weight = op.constant(1)
    if weight is None or weight.ndim != 2 or len(op.shape(0)) != 1:
        raise op.refusal("something else than a vector and a matrix")
    _linear(op, weight.T, None)


def _linear(op: _Operator, weight: np.ndarray, bias: np.ndarray | None) -> None:
    outputs, inputs = weight.shape
    if bias is not None:
        bias = np.broadcast_to(bias.reshape(-1), (outputs,))
    op.become(
        "linear",
        op.input(0),
        weights={"weight": weight, "bias": bias},
        in_features=inputs,
        out_features=outputs,
        bias=bias is not None,
    )


def _batch_norm(reader: _Reader, op: _Operator) -> None:
    parts = ("weight", "bias", "running_mean", "running_var")
    weights = {part: op.constant(i + 1) for i, part in enumerate(parts)}
    kind = "batch_norm" if len(op.shape(0)) == 3 else "batch_norm_1d"
    op.become(
        kind,
        op.input(0),
        weights=weights,
        num_features=op.shape(0)[0],
        eps=float(op.setting("epsilon", 1e-5)),
    )
    counted = f"layers.{reader.nodes[-1]['name']}.num_batches_tracked"
    reader.weights[counted] = torch.tensor(0)


def _clip(reader: _Reader, op: _Operator) -> None:
    bounds = [op.setting("min"), op.setting("max")]
    for i in (0, 1):
        given = op.constant(i + 1)
        bounds[i] = bounds[i] if given is None else float(given)
    low, high = bounds
    if low != 0 or high not in (6, None):
        raise op.refusal(f"bounds {low} and {high}")
    op.become("relu" if high is None else "relu6", op.input(0))


def _prelu(reader: _Reader, op: _Operator) -> None:
    slopes = op.constant(1)
    channels = op.shape(0)[0]
    if slopes is None or slopes.size not in (1, channels):
        raise op.refusal("slopes that are not one per channel")
    op.become(
        "prelu", op.input(0), weights={"weight": slopes.reshape(-1)}, num_parameters=slopes.size
    )


def _leaky_relu(reader: _Reader, op: _Operator) -> None:
    op.become("leaky_relu", op.input(0), negative_slope=float(op.setting("alpha", 0.01)))


def _hard_sigmoid(reader: _Reader, op: _Operator) -> None:
    slope, offset = op.setting("alpha", 0.2), op.setting("beta", 0.5)
    if abs(slope - HARD_SIGMOID_SLOPE) > 1e-6 or offset != 0.5:
        raise op.refusal(f"slope {slope:g} and offset {offset:g}")
    op.become("hard_sigmoid", op.input(0))


def _pool(reader: _Reader, op: _Operator) -> None:
    top, left, down, right = op.setting("pads", [0] * 4)
    automatic = op.setting("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID")
    if (top, left) != (down, right) or automatic or len(op.setting("kernel_shape")) != 2:
        raise op.refusal("padding that differs from side to side")
    kernel = list(op.setting("kernel_shape"))
    arguments: dict[str, Any] = {
        "kernel_size": kernel,
        "stride": list(op.setting("strides", [1, 1])),
        "padding": [top, left],
        "ceil_mode": bool(op.setting("ceil_mode", 0)),
    }
    dilation = list(op.setting("dilations", [1, 1]))
    if op.operator.op_type == "MaxPool":
        op.become("max_pool", op.input(0), dilation=dilation, **arguments)
    elif dilation != [1, 1]:
        raise op.refusal("dilation")
    else:
        counted = bool(op.setting("count_include_pad", 0))
        op.become("average_pool", op.input(0), count_include_pad=counted, **arguments)


def _global_mean(reader: _Reader, op: _Operator) -> None:
    op.become("mean_pool", op.input(0), output_size=1)


def _reduce_mean(reader: _Reader, op: _Operator) -> None:
    axes = op.constant(1)
    found = op.setting("axes") if axes is None else axes.tolist()
    rank = len(op.shape(0)) + 1
    if rank != 4 or sorted(a % rank for a in found or ()) != [2, 3]:
        raise op.refusal(f"axes {found}")
    if op.setting("keepdims", 1):
        op.become("mean_pool", op.input(0), output_size=1)
    else:
        op.become("flatten", reader.add("mean_pool", [op.input(0)], {}, output_size=1))


def _flatten(reader: _Reader, op: _Operator) -> None:
    if op.setting("axis", 1) != 1:
        raise op.refusal(f"axis {op.setting('axis')}")
    op.become("flatten", op.input(0))


def _reshape(reader: _Reader, op: _Operator) -> None:
    shape = op.constant(1)
    width = int(np.prod(op.shape(0)))
    if shape is None or len(shape) != 2 or (shape[0] > 0 and shape[1] == -1 and shape[0] != 1):
        raise op.refusal("a shape that is not (n, d)")
    if shape[1] not in (-1, width):
        raise op.refusal(f"{shape[1]} columns for {width} values")
    op.become("flatten", op.input(0))


def _squeeze(reader: _Reader, op: _Operator) -> None:
    axes = op.constant(1)
    found = op.setting("axes") if axes is None else axes.tolist()
    if len(op.shape(0)) != 3 or sorted(a % 4 for a in found or ()) != [2, 3]:
        raise op.refusal(f"axes {found}")
    op.become("flatten", op.input(0))


def _pad(reader: _Reader, op: _Operator) -> None:
    given, value = op.constant(1), op.constant(2)
    pads = list(op.setting("pads", [])) if given is None else given.tolist()
    filled = op.setting("value", 0.0) if value is None else float(value)
    zeros = op.setting("mode", b"constant") == b"constant" and filled == 0
    if not zeros or len(pads) != 8 or any(pads[i] for i in (0, 1, 4, 5)):
        raise op.refusal("something else than zeros around maps")
    _, _, top, left, _, _, down, right = pads
    op.become("pad", op.input(0), padding=[left, right, top, down])


def _arithmetic(reader: _Reader, op: _Operator) -> None:
    kind = op.operator.op_type
    fixed = [op.is_constant(i) for i in (0, 1)]
    if not any(fixed):
        both = {"Add": "add", "Mul": "multiply"}
        if kind not in both:
            raise op.refusal("two computed inputs")
        op.become(both[kind], op.input(0), op.input(1))
        return
    place = fixed.index(True)
    if place == 0 and kind in ("Sub", "Div"):
        raise op.refusal("a constant as its first input")
    channels = op.shape(1 - place)[0]
    value = _per_channel(op, np.asarray(op.constant(place)), channels)
    one, zero = np.ones(channels), np.zeros(channels)
    scale, shift = {
        "Add": (one, value),
        "Sub": (one, -value),
        "Mul": (value, zero),
        "Div": (1 / value, zero),
    }[kind]
    op.become(
        "affine",
        op.input(1 - place),
        weights={"weight": scale, "bias": shift},
        num_features=channels,
    )


def _per_channel(op: _Operator, value: np.ndarray, channels: int) -> np.ndarray:
    """Bring a constant to one value per channel."""
    rank = len(op.shape(1 if op.is_constant(0) else 0)) + 1
    column = (1, channels) + (1,) * (rank - 2)
    aligned = (1,) * (rank - value.ndim) + value.shape
    if len(aligned) != rank or any(a not in (1, c) for a, c in zip(aligned, column, strict=True)):
        raise op.refusal(f"a constant of shape {value.shape}")
    return np.broadcast_to(value.reshape(-1).astype(np.float64), (channels,))


def _plain(kind: str) -> Callable[[_Reader, _Operator], None]:
    return lambda reader, op: op.become(kind, op.input(0))


def _nothing(reader: _Reader, op: _Operator) -> None:
    op.vanish()


OPERATORS: Mapping[str, Callable[[_Reader, _Operator], None]] = {
    "Conv": _conv,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "BatchNormalization": _batch_norm,
    "Relu": _plain("relu"),
    "Clip": _clip,
    "PRelu": _prelu,
    "LeakyRelu": _leaky_relu,
    "Sigmoid": _plain("sigmoid"),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _plain("hard_swish"),
    "Add": _arithmetic,
    "Sub": _arithmetic,
    "Mul": _arithmetic,
    "Div": _arithmetic,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "GlobalAveragePool": _global_mean,
    "ReduceMean": _reduce_mean,
    "Flatten": _flatten,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Pad": _pad,
    "Identity": _nothing,
    "Dropout": _nothing,
}
