"""`surefind export`: one graph, compared with PyTorch before it is written."""

import numpy as np
import onnxruntime
import pytest

import surefind as sf


@pytest.mark.slow
def test_a_run_becomes_a_graph(surefind, sure, tmp_path):
    code, out, err = surefind("export", sure, "--onnx", "made/model.onnx", "--check", "digits:test")
    assert code == 0, err
    assert "agree on 256 inputs" in out
    session = onnxruntime.InferenceSession(tmp_path / "made" / "model.onnx")
    learner = sf.load(sure)
    images = np.random.default_rng(0).random((3, *learner.input_spec_.shape), dtype=np.float32)
    direction, kappa, _novelty = session.run(None, {"inputs": images})
    wanted = learner.embed(images)
    np.testing.assert_allclose(direction, wanted.mean, atol=1e-5)
    np.testing.assert_allclose(kappa, wanted.kappa, rtol=1e-5)


def test_wrong_usage_is_refused(refused, trained):
    assert refused("export", trained, "--onnx", "model.pt").field
    assert refused("export", "nowhere", "--onnx", "model.onnx").field == "run"
    assert refused("export", trained, "--onnx", "m.onnx", "--check", "nowhere").field == "source"
