"""Networks in ONNX files, against the reference implementation that comes with ONNX."""

import json
import sys

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import surefind as sf
from surefind.models.backbones import load_backbone, with_linear_head
from surefind.models.onnx_file import read_onnx

RNG = np.random.default_rng(3)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def op(kind, inputs, output="y", **attributes):
    return helper.make_node(kind, inputs.split(), [output], name=f"the_{kind}", **attributes)


def ints(*values):
    return np.array(values, dtype=np.int64)


def write(path, nodes, constants=None, image=("n", 3, 9, 12), opset=17, outputs=("y",)):
    """Write a file whose input is x and whose output is y, whose declared shape nobody reads."""
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, image)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "d"]) for name in outputs],
        [numpy_helper.from_array(v, k) for k, v in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


KERNEL = {"w": normal(4, 3, 3, 3), "b": normal(4)}
STATISTICS = {"g": normal(3), "s": normal(3), "m": normal(3), "v": normal(3) ** 2 + 0.1}
MAPS = {
    "conv": ([op("Conv", "x w b", pads=[1, 2, 1, 2], strides=[2, 1])], KERNEL),
    "conv without padding": ([op("Conv", "x w", auto_pad="VALID")], {"w": KERNEL["w"]}),
    "grouped, dilated": (
        [op("Conv", "x w", group=3, dilations=[2, 1])],
        {"w": normal(6, 1, 3, 2)},
    ),
    "same padding": ([op("Conv", "x w b", auto_pad="SAME_UPPER", strides=[2, 2])], KERNEL),
    "uneven padding": ([op("Conv", "x w b", pads=[0, 1, 2, 0])], KERNEL),
    "batch norm": ([op("BatchNormalization", "x g s m v", epsilon=0.01)], STATISTICS),
    "relu": ([op("Relu", "x")], {}),
    "relu6": ([op("Clip", "x a z")], {"a": np.float32(0), "z": np.float32(6)}),
    "clip from zero": ([op("Clip", "x a")], {"a": np.float32(0)}),
    "prelu": ([op("PRelu", "x w")], {"w": normal(3, 1, 1)}),
    "one slope": ([op("PRelu", "x w")], {"w": normal(1)}),
    "leaky relu": ([op("LeakyRelu", "x", alpha=0.3)], {}),
    "sigmoid": ([op("Sigmoid", "x")], {}),
    "hard sigmoid": ([op("HardSigmoid", "x", alpha=1 / 6, beta=0.5)], {}),
    "hard swish": ([op("HardSwish", "x")], {}),
    "residual": ([op("Relu", "x", "a"), op("Add", "a x")], {}),
    "gate": (
        [op("GlobalAveragePool", "x", "a"), op("Sigmoid", "a", "b"), op("Mul", "x b")],
        {},
    ),
    "kept mean": (
        [op("ReduceMean", "x", "a", axes=[-1, 2], keepdims=1), op("Add", "x a")],
        {},
    ),
    "subtract and divide": (
        [op("Sub", "x a", "c"), op("Div", "c b")],
        {"a": normal(1, 3, 1, 1), "b": normal(3, 1, 1) + 5},
    ),
    "constants first": ([op("Mul", "a x", "c"), op("Add", "b c")], {"a": normal(), "b": normal(1)}),
    "max pool": (
        [op("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])],
        {},
    ),
    "average pool": (
        [op("AveragePool", "x", kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 0])],
        {},
    ),
    "padding counts": (
        [op("AveragePool", "x", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)],
        {},
    ),
    "pad": ([op("Pad", "x p")], {"p": ints(0, 0, 1, 2, 0, 0, 3, 0)}),
    "nothing": ([op("Identity", "x", "a"), op("Dropout", "a", "b"), op("Relu", "b")], {}),
}
WIDE = 3 * 9 * 12
VECTORS = {
    "flatten": ([op("Flatten", "x")], {}),
    "reshape": ([op("Reshape", "x s")], {"s": ints(0, -1)}),
    "reshape to the width": ([op("Reshape", "x s")], {"s": ints(-1, WIDE)}),
    "mean": ([op("GlobalAveragePool", "x", "a"), op("Flatten", "a")], {}),
    "squeeze": (
        [op("GlobalAveragePool", "x", "a"), op("Squeeze", "a s")],
        {"s": ints(2, 3)},
    ),
    "dropped mean": ([op("ReduceMean", "x", axes=[2, 3], keepdims=0)], {}),
    "gemm": (
        [op("Flatten", "x", "a"), op("Gemm", "a w b", transB=1)],
        {"w": normal(5, WIDE), "b": normal(5)},
    ),
    "gemm of the other side": (
        [op("Flatten", "x", "a"), op("Gemm", "a w")],
        {"w": normal(WIDE, 5)},
    ),
    "matmul": (
        [op("Flatten", "x", "a"), op("MatMul", "a w", "c"), op("Add", "c b")],
        {"w": normal(WIDE, 5), "b": normal(5)},
    ),
    "norm of vectors": (
        [
            op("GlobalAveragePool", "x", "a"),
            op("Flatten", "a", "b"),
            op("BatchNormalization", "b g s m v"),
        ],
        STATISTICS,
    ),
}


def same_as_reference(path, features, images):
    expected = torch.from_numpy(ReferenceEvaluator(str(path)).run(None, {"x": images.numpy()})[0])
    if expected.ndim == 4:
        expected = expected.mean(dim=(2, 3))
    with torch.no_grad():
        torch.testing.assert_close(features(images), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MAPS | VECTORS)
def test_operators_compute_what_onnx_says(tmp_path, generator, name):
    path = write(tmp_path / "net.onnx", *(MAPS | VECTORS)[name])
    before = torch.get_rng_state()
    net = load_backbone(path, pooling="mean" if name in MAPS else "own")
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(m.training for m in net.modules())
    images = 3 * torch.randn(2, 3, 9, 12, generator=generator)
    assert net(images).shape == (2, net.width)
    same_as_reference(path, net, images)


@pytest.fixture
def encoder_file(tmp_path):
    """A residual network that ends with mean pooling, and takes images of any size."""
    nodes = [
        op("Conv", "x w b", "a", pads=[1, 1, 1, 1]),
        op("Relu", "a", "r"),
        op("Conv", "r w2", "c", pads=[1, 1, 1, 1]),
        op("Add", "c r", "d"),
        op("Relu", "d", "e"),
        op("GlobalAveragePool", "e", "f"),
        op("Flatten", "f"),
    ]
    constants = KERNEL | {"w2": normal(4, 4, 3, 3)}
    return write(tmp_path / "encoder.onnx", nodes, constants, image=("n", 3, "h", "w"))


def test_a_mean_at_the_end_may_be_exchanged(encoder_file, generator):
    images = torch.randn(2, 3, 8, 10, generator=generator)
    own = load_backbone(encoder_file)
    same_as_reference(encoder_file, own, images)
    assert torch.equal(load_backbone(encoder_file, pooling="mean")(images), own(images))
    gem = load_backbone(encoder_file, pooling="gem")
    maps = []
    own.layers["relu4"].register_forward_hook(lambda *found: maps.append(found[2]))
    own(images)
    expected = (maps[0].clamp(min=1e-6) ** 3).mean(dim=(2, 3)) ** (1 / 3)
    torch.testing.assert_close(gem(images), expected)
    assert (own.width, gem.width) == (4, 4)


def test_preprocessing_is_none_unless_it_lies_beside_the_file(encoder_file):
    assert load_backbone(str(encoder_file)).preprocessing is None
    given = {"size": 32, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (encoder_file.parent / "preprocessor_config.json").write_text(json.dumps(given))
    assert load_backbone(encoder_file).preprocessing["crop"] == 32


def test_a_file_becomes_a_model_that_is_trained_and_saved(encoder_file, tmp_path, generator):
    encoder = with_linear_head(load_backbone(encoder_file, pooling="gem"), 2, generator=generator)
    images = torch.rand(48, 3, 8, 8, generator=generator)
    images[24:, 0] *= 0.3
    data = sf.Dataset(images, labels=[0] * 24 + [1] * 24)
    learner = sf.MetricLearner(encoder, method="laplace-posthoc", epochs=1, seed=0).fit(data)
    moved = learner.fitted.network.backbone.layers["conv0"].weight
    assert not torch.equal(moved, encoder.backbone.layers["conv0"].weight)
    assert learner.novelty_.stages == ("layers.relu1", "layers.relu4")
    learner.save(tmp_path / "model")
    encoder_file.unlink()
    again = sf.load(tmp_path / "model").embed(data)
    assert torch.equal(again.mean, learner.embed(data).mean)


REFUSED = {
    "operator": ([op("Softmax", "x")], {}, r"operator Softmax \(the_Softmax\).* is not supported"),
    "computed weights": ([op("Relu", "x", "a"), op("Conv", "x a")], {}, "Conv .*computed by other"),
    "bounds": ([op("Clip", "x a")], {"a": np.float32(-1)}, "Clip .* bounds -1.0 and None"),
    "lower padding": ([op("Conv", "x w b", auto_pad="SAME_LOWER")], KERNEL, "SAME_LOWER"),
    "slope": ([op("HardSigmoid", "x")], {}, "HardSigmoid .* slope 0.2"),
    "uneven pool": (
        [op("MaxPool", "x", kernel_shape=[2, 2], pads=[0, 0, 1, 1])],
        {},
        "MaxPool .* differs from side to side",
    ),
    "axes": ([op("ReduceMean", "x", axes=[1])], {}, r"ReduceMean .* axes \[1\]"),
    "rows": ([op("Reshape", "x s")], {"s": ints(-1, 12)}, "Reshape .* 12 columns for 324 values"),
    "rank": ([op("Reshape", "x s")], {"s": ints(0, 3, -1)}, "Reshape .* not \\(n, d\\)"),
    "reflection": (
        [op("Pad", "x p", mode="reflect")],
        {"p": ints(0, 0, 1, 1, 0, 0, 1, 1)},
        "Pad .* than zeros around maps",
    ),
    "left constant": ([op("Sub", "a x")], {"a": normal(1)}, "Sub .* constant as its first input"),
    "two divided": ([op("Relu", "x", "a"), op("Div", "x a")], {}, "Div .* two computed inputs"),
    "per position": ([op("Add", "x a")], {"a": normal(12)}, r"Add .* constant of shape \(12,\)"),
    "channels": ([op("Conv", "x w")], {"w": normal(4, 2, 3, 3)}, "does not fit its inputs"),
    "scaled": (
        [op("Flatten", "x", "a"), op("Gemm", "a w", alpha=2.0)],
        {"w": normal(WIDE, 5)},
        "Gemm .* scaled or transposed",
    ),
    "left out": (
        [op("Relu", "x"), op("Relu", "y", "z")],
        {},
        "not what its last operator computes",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_node_is_refused_by_name(tmp_path, name):
    nodes, constants, message = REFUSED[name]
    with pytest.raises(sf.InputError, match=message):
        read_onnx(write(tmp_path / "net.onnx", nodes, constants))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"outputs": ("y", "z")}, "1 inputs and 2 outputs"),
        ({"image": ("n", 3)}, "images .n, c, height, width."),
        ({"image": ("n", "c", 8, 8)}, "known number of channels"),
    ],
)
def test_networks_that_are_no_encoders_are_refused(tmp_path, change, message):
    nodes = [op("Relu", "x"), op("Relu", "x", "z")]
    with pytest.raises(sf.InputError, match=message):
        read_onnx(write(tmp_path / "net.onnx", nodes, **change))


def test_a_pooling_that_does_not_fit_is_refused(tmp_path):
    path = write(tmp_path / "net.onnx", *VECTORS["gemm"])
    with pytest.raises(sf.InputError, match="needs a network that ends with maps"):
        load_backbone(path, pooling="gem")
    with pytest.raises(sf.InputError, match="'gem', 'mean', 'own'; got 'cls'"):
        load_backbone(path, pooling="cls")
    path = write(tmp_path / "maps.onnx", *MAPS["conv"])
    with pytest.raises(sf.InputError, match=r"ends with maps .*append a pooling"):
        load_backbone(path, pooling="own")


def test_files_that_are_none_are_refused(tmp_path, monkeypatch):
    with pytest.raises(sf.InputError, match="there is no file"):
        load_backbone(tmp_path / "none.onnx")
    path = tmp_path / "net.onnx"
    path.write_bytes(b"not a network")
    with pytest.raises(sf.InputError, match="cannot be read as ONNX"):
        load_backbone(path)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(sf.InputError, match=r"onnx is needed .*pip install onnx"):
        load_backbone(path)
