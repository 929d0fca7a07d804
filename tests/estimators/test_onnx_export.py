"""One graph: onnxruntime gives what the learner gives, for batches of any size."""

import json
import logging
from dataclasses import replace
from functools import cache

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from small_learners import GIVEN, digits, learner

import surefind as sf
from surefind.errors import InputError, NumericalError
from surefind.estimators import onnx_export
from surefind.estimators.onnx_export import ExportGraph
from surefind.posterior.sphere import resultant, resultant_on_one_grid

DENSE = replace(GIVEN, structure="dense")
EXPORTED = {
    "deterministic": {"method": "deterministic", "epochs": 0, "novelty": None},
    "diagonal": {"method": "laplace-posthoc", "epochs": 1},
    "kronecker": {"method": replace(GIVEN, structure="kronecker"), "epochs": 0, "novelty": None},
    "pfe": {"method": "pfe", "epochs": 1, "novelty": None},
    "hib": {"method": "hib", "epochs": 1, "novelty": None},
    "frozen": {
        "method": "laplace-posthoc",
        "epochs": 0,
        "freeze_backbone": sf.Freezing(trained_stages=1),
    },
}


@pytest.fixture(autouse=True)
def untraced():
    """Without PyTorch's trace of each symbol, which pytest would collect at the price of a minute."""
    trace = logging.getLogger("torch.__trace")
    disabled, trace.disabled = trace.disabled, True
    yield
    trace.disabled = disabled


@cache
def fitted(name):
    return learner(**EXPORTED[name]).fit(digits()[0])


def run(path, inputs):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {"inputs": inputs.numpy()})


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPORTED)
def test_what_is_exported_computes_what_the_learner_computes(name):
    """Before it is translated: the same in PyTorch, without checks and branches."""
    model, batch = fitted(name), digits()[1][:30].read()
    with torch.no_grad():
        direction, kappa, *novelty = ExportGraph(model)(batch)
    wanted = model.embed_batch(batch)
    torch.testing.assert_close(direction, wanted.mean, atol=1e-6, rtol=0)
    torch.testing.assert_close(kappa, wanted.kappa, rtol=1e-6, atol=0)
    if novelty:
        torch.testing.assert_close(novelty[0], wanted.novelty)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "frozen",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in ("deterministic", "diagonal", "kronecker", "pfe")
        ),
    ],
)
def test_the_graph_gives_what_the_learner_gives(name, tmp_path):
    model, test = fitted(name), digits()[1]
    # The inputs of a trained last stage are rounded to half precision, where the last bit of a float32 may
    # decide, and does on some processors.
    close = 1e-3 if name == "frozen" else 1e-5
    made = sf.export_onnx(model, tmp_path / "m.onnx", inputs=test[:64], tolerance=close)
    assert made.direction_error <= close
    assert made.kappa_error <= close
    about = {e.key: e.value for e in onnx.load(tmp_path / "m.onnx").metadata_props}
    assert json.loads(about["surefind.checked"])["inputs"] == 64
    assert json.loads(about["surefind.inputs"])["shape"] == [1, 8, 8]
    assert (
        "(batch, 1, 8, 8), grey, values from 0 to 1 (8 bits divided by 255)"
        in about["surefind.expects"]
    )
    assert about["surefind.method"] == model.method_name
    assert (*json.loads(about["surefind.outputs"]),) == made.outputs
    for n in (1, 5):  # the batch is free
        batch = test[100 : 100 + n].read(preprocessing=model.input_spec_)
        wanted, found = model.embed(test[100 : 100 + n]), run(tmp_path / "m.onnx", batch)
        assert np.abs(found[0] - wanted.mean.numpy()).max() <= close
        np.testing.assert_allclose(found[1], wanted.kappa.numpy(), rtol=close)
        assert len(found) == (2 if wanted.novelty is None else 3)
        if wanted.novelty is not None:
            step = 2 / len(model.layers_.novelty.known)
            assert np.abs(found[2] - wanted.novelty.numpy()).max() <= step


class Own(torch.nn.Module):
    """A network of one's own, which is left half-way for its features."""

    def __init__(self):
        super().__init__()
        self.trunk = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten()
        )
        self.projection = torch.nn.Linear(144, 3)

    def forward(self, images):
        return torch.nn.functional.normalize(self.projection(self.trunk(images)), dim=1)


@pytest.mark.slow
def test_a_module_that_was_split_is_exported(tmp_path):
    model = sf.MetricLearner(Own(), method=GIVEN, embedding="head", epochs=0, novelty=False).fit(
        digits()[0]
    )
    made = sf.export_onnx(model, tmp_path / "m.onnx", inputs=digits()[1][:50])
    assert made.kappa_error <= 1e-5
    assert made.outputs == ("direction", "kappa")


@pytest.mark.slow
def test_a_posterior_of_vectors_keeps_its_digits_when_it_is_narrow(tmp_path):
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(60, 6, generator=generator)
    data = sf.Dataset(vectors, torch.arange(60) % 3)
    network = sf.Encoder(torch.nn.Identity(), torch.nn.Linear(6, 4))
    method = sf.methods.LaplacePosthoc(scale=1.0, prior_precision=1e12)
    model = sf.MetricLearner(network, method=method, embedding="head", epochs=0, novelty=False).fit(
        data
    )
    assert float(model.embed(vectors).kappa.min()) > 1e9
    made = sf.export_onnx(model, tmp_path / "m.onnx", inputs=data)
    assert made.kappa_error <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("method", ["mc-dropout", "deep-ensemble", DENSE], ids=str)
def test_methods_without_a_closed_form_are_refused(method, tmp_path):
    epochs = 0 if method == DENSE else 1
    model = learner(method, epochs=epochs, novelty=False).fit(digits()[0][:60])
    with pytest.raises(InputError) as refusal:
        sf.export_onnx(model, tmp_path / "m.onnx")
    assert refusal.value.field == "method"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "options", "field"),
    [
        ("m.pt", {}, "path"),
        ("nowhere/m.onnx", {}, "path"),
        ("m.onnx", {"tolerance": 0.0}, "tolerance"),
        ("m.onnx", {"inputs": np.empty((0, 1, 8, 8), np.float32)}, "inputs"),
    ],
)
def test_what_cannot_be_compared_or_written_is_refused(name, options, field, tmp_path):
    with pytest.raises(InputError) as refusal:
        sf.export_onnx(fitted("deterministic"), tmp_path / name, **options)
    assert refusal.value.field == field
    assert not list(tmp_path.iterdir())


def test_inputs_are_made_up_where_none_are_given():
    found = onnx_export._example_inputs(fitted("deterministic"), None)
    assert found.shape == (onnx_export.CHECKED, 1, 8, 8)
    assert 0 <= float(found.min()) <= float(found.max()) <= 1


def test_images_of_any_size_are_refused(tmp_path):
    how = sf.Preprocessing(resize=8)
    model = learner("deterministic", epochs=0, novelty=False, preprocessing=how).fit(digits()[0])
    with pytest.raises(InputError) as refusal:
        sf.export_onnx(model, tmp_path / "m.onnx")
    assert refusal.value.field == "preprocessing"


class Branching(torch.nn.Module):
    def forward(self, images):
        flat = images.flatten(1)
        return flat if bool((flat.sum() > 0).item()) else -flat


@pytest.mark.slow
def test_a_network_that_branches_on_values_is_refused(tmp_path):
    network = sf.Encoder(Branching(), torch.nn.Linear(64, 3))
    model = sf.MetricLearner(
        network, method="deterministic", embedding="head", epochs=0, novelty=False
    )
    model.fit(digits()[0][:30])
    with pytest.raises(InputError) as refusal:
        sf.export_onnx(model, tmp_path / "m.onnx")
    assert refusal.value.field == "learner"


def test_disagreement_is_refused():
    model, batch = fitted("deterministic"), digits()[1][:4].read()
    with torch.no_grad():
        direction, kappa = (x.numpy() for x in ExportGraph(model)(batch))
    assert onnx_export._compared(model, [direction, kappa], batch, 1e-5)[0] < 1e-6
    for found in ([direction + 1e-4, kappa], [direction, np.full_like(kappa, 5)]):
        with pytest.raises(NumericalError) as refusal:
            onnx_export._compared(model, found, batch, 1e-5)
        assert refusal.value.field == "tolerance"


@pytest.mark.slow
def test_novelty_that_differs_is_refused():
    model, batch = fitted("frozen"), digits()[1][:4].read()
    with torch.no_grad():
        found = [x.numpy() for x in ExportGraph(model)(batch)]
    onnx_export._compared(model, found, batch, 1e-5)
    with pytest.raises(NumericalError) as refusal:
        onnx_export._compared(model, [*found[:2], found[2] * 0 + 0.999], batch, 1e-5)
    assert refusal.value.field == "inputs"


@pytest.mark.parametrize("z", [2, 3, 17, 300])
def test_one_grid_gives_what_the_branches_give(z):
    generator = torch.Generator().manual_seed(z)
    mean = torch.randn(100, z, generator=generator, dtype=torch.float64)
    width = 10 ** (16 * torch.rand(100, 1, generator=generator, dtype=torch.float64) - 12)
    variance = width * torch.rand(100, z, generator=generator, dtype=torch.float64)
    wanted, found = resultant(mean, variance), resultant_on_one_grid(mean, variance)
    torch.testing.assert_close(found.mean, wanted.mean, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(found.shortfall, wanted.shortfall, rtol=1e-11, atol=0)
