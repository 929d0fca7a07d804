"""Graphs that onnxruntime runs, as frozen encoders."""

import copy

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from small_learners import digits

import surefind as sf
from surefind.errors import InputError
from surefind.models.backbones import load_backbone, with_linear_head
from surefind.models.layers import Layers, StageWatch, choose_stages
from surefind.models.onnx_encoder import OnnxNet

WEIGHTS = np.random.default_rng(0).standard_normal((64, 6)).astype(np.float32)
IMAGE = ("n", 1, 8, 8)


def op(kind, inputs, *outputs, **attributes):
    return helper.make_node(kind, inputs.split(), list(outputs or ["y"]), **attributes)


def write(
    path,
    nodes,
    shape=IMAGE,
    kind=TensorProto.FLOAT,
    inputs=("x",),
    outputs=("y",),
    more=None,
    declared=("n", 6),
):
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(name, kind, shape) for name in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, declared) for name in outputs],
        [numpy_helper.from_array(v, k) for k, v in {"w": WEIGHTS, **(more or {})}.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


ERF = [op("Flatten", "x", "a"), op("MatMul", "a w", "b"), op("Erf", "b")]


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / "net.onnx", ERF)


def images(n=5):
    return torch.rand(n, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def expected(x):
    return torch.erf(x.flatten(1) @ torch.from_numpy(WEIGHTS))


def test_a_graph_is_run_as_it_is(file):
    net = load_backbone(file)
    assert isinstance(net, OnnxNet)
    assert net.width == 6
    torch.testing.assert_close(net(images()), expected(images()), atol=1e-5, rtol=1e-5)
    other = copy.deepcopy(net)
    assert torch.equal(other(images()), net(images()))


@pytest.mark.parametrize(("size", "n"), [(1, 3), (4, 6), (4, 4)])
def test_a_fixed_batch_is_filled_up(tmp_path, size, n):
    net = OnnxNet.load(write(tmp_path / "net.onnx", ERF, shape=(size, 1, 8, 8)))
    torch.testing.assert_close(net(images(n)), expected(images(n)), atol=1e-5, rtol=1e-5)


POOLED = {
    "map": ([op("Erf", "x")], "auto", lambda x: torch.erf(x).mean((2, 3))),
    "tokens": (
        [op("Squeeze", "x one", "a"), op("Erf", "a")],
        "mean",
        lambda x: torch.erf(x[:, 0]).mean(1),
    ),
    "first token": (
        [op("Squeeze", "x one", "a"), op("Erf", "a")],
        "cls",
        lambda x: torch.erf(x[:, 0, 0]),
    ),
}


@pytest.mark.parametrize("name", POOLED)
def test_maps_and_tokens_are_pooled(tmp_path, name):
    nodes, pooling, wanted = POOLED[name]
    path = write(tmp_path / "net.onnx", nodes, more={"one": np.array([1])}, declared=None)
    net = OnnxNet.load(path, pooling=pooling)
    torch.testing.assert_close(net(images()), wanted(images()), atol=1e-6, rtol=1e-5)


def test_an_output_is_chosen_by_name(tmp_path):
    nodes = [*ERF[:2], op("Erf", "b"), op("Tanh", "b", "z")]
    path = write(tmp_path / "net.onnx", nodes, outputs=("y", "z"))
    torch.testing.assert_close(
        OnnxNet.load(path, output="z")(images()),
        torch.tanh(images().flatten(1) @ torch.from_numpy(WEIGHTS)),
        atol=1e-5,
        rtol=1e-5,
    )
    with pytest.raises(InputError):
        OnnxNet.load(path, output="nothing")


def test_other_outputs_are_the_stages(tmp_path):
    nodes = [op("Erf", "x", "z"), op("Flatten", "z", "a"), op("MatMul", "a w")]
    path = write(tmp_path / "net.onnx", nodes, outputs=("y", "z"), declared=None)
    net = load_backbone(path)
    assert choose_stages(net, images()) == ("stages.0",)
    layers = Layers(net.own_stages, 2)
    watch = StageWatch(net, layers)
    with watch.watching():
        net(images())
    torch.testing.assert_close(watch.take(5), [layers.statistics(torch.erf(images()))])
    again = OnnxNet(**net.recipe)
    again.load_state_dict(net.state_dict())
    assert torch.equal(again(images()), net(images()))


def test_a_learner_freezes_it_saves_it_and_finds_novelty(file, tmp_path):
    train, test = digits()
    generator = torch.Generator().manual_seed(0)
    encoder = with_linear_head(load_backbone(file), 4, generator=generator)
    learner = sf.MetricLearner(encoder, method="laplace-posthoc", epochs=0)
    assert learner.freezing is not None
    found = learner.fit(train).embed(test)
    assert bool(torch.isfinite(found.kappa).all())
    noise = torch.rand(20, 1, 8, 8, generator=generator)
    assert float(learner.embed(5 * noise).novelty.mean()) < float(found.novelty.mean())
    learner.save(tmp_path / "saved")
    file.unlink()  # the saved model holds the graph
    again = sf.load(tmp_path / "saved")
    assert torch.equal(again.embed(test).mean, found.mean)
    assert torch.equal(again.embed(test).novelty, found.novelty)


REFUSED = {
    "two inputs": {"nodes": [op("Add", "x z")], "inputs": ("x", "z"), "declared": IMAGE},
    "numbers of tokens": {
        "nodes": [op("Cast", "x", to=1)],
        "kind": TensorProto.INT64,
        "declared": IMAGE,
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_graphs_of_something_else_are_refused(tmp_path, name):
    with pytest.raises(InputError) as refusal:
        OnnxNet.load(write(tmp_path / "net.onnx", **REFUSED[name]))
    assert refusal.value.field == "source"
    with pytest.raises(InputError) as refusal:
        load_backbone(tmp_path / "net.onnx")
    assert refusal.value.field == "source"


def test_what_does_not_fit_is_refused(file, tmp_path):
    (tmp_path / "torn.onnx").write_bytes(file.read_bytes()[:100])
    for use, field in (
        (lambda: OnnxNet.load(file)(torch.zeros(2, 3, 8, 8)), "inputs"),
        (lambda: OnnxNet.load(file, pooling="cls"), "pooling"),
        (lambda: OnnxNet.load(file, pooling="gem"), "pooling"),
        (lambda: OnnxNet.load(tmp_path / "none.onnx"), "source"),
        (lambda: OnnxNet.load(tmp_path / "torn.onnx"), "source"),
    ):
        with pytest.raises(InputError) as refusal:
            use()
        assert refusal.value.field == field


@pytest.mark.slow
def test_it_is_no_part_of_another_graph(file, tmp_path):
    generator = torch.Generator().manual_seed(0)
    encoder = with_linear_head(load_backbone(file), 4, generator=generator)
    learner = sf.MetricLearner(encoder, method="deterministic", epochs=0, novelty=False)
    with pytest.raises(InputError) as refusal:
        sf.export_onnx(learner.fit(digits()[0]), tmp_path / "m.onnx")
    assert refusal.value.field == "learner"
