import pytest
import torch
from torch import nn

import surefind as sf
from surefind.models.encoder import Encoder, on_sphere


@pytest.fixture(params=[True, False], ids=["bias", "no bias"])
def encoder(request):
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.Tanh())
    return Encoder(backbone, nn.Linear(5, 3, bias=request.param)).double().eval()


@pytest.fixture
def x(normal):
    return normal(7, 3, 4)


def test_embeddings_equal_the_plain_computation(encoder, x):
    z = encoder.head(encoder.backbone(x))
    torch.testing.assert_close(encoder(x), z / z.norm(dim=1, keepdim=True))
    assert torch.equal(encoder.outputs(x), z)
    assert encoder.embedding_dim == 3


def test_features_times_head_weights_are_the_outputs(encoder, x):
    h, weights = encoder.features(x), encoder.head_weights()
    assert h.shape[1] == weights.shape[1] == 5 + (encoder.head.bias is not None)
    if encoder.head.bias is not None:
        assert torch.equal(h[:, -1], torch.ones(7, dtype=h.dtype))
    torch.testing.assert_close(h @ weights.T, encoder.outputs(x))
    torch.testing.assert_close(encoder.outputs_of(h), encoder.outputs(x))


def test_head_weights_are_a_copy(encoder):
    before = encoder.head.weight.clone()
    weights = encoder.head_weights()
    assert not weights.requires_grad
    weights.zero_()
    assert torch.equal(encoder.head.weight, before)


def test_with_head_shares_the_backbone_and_changes_nothing(encoder, x, normal):
    before = {k: v.clone() for k, v in encoder.state_dict().items()}
    weights = normal(2, encoder.head_weights().shape[1])
    other = encoder.with_head(weights)
    assert torch.equal(other.head_weights(), weights)
    assert other.backbone is encoder.backbone
    assert not other.training
    assert not other.head.training
    torch.testing.assert_close(other.outputs(x), encoder.features(x) @ weights.T)
    weights.zero_()
    assert other.head_weights().any()
    assert all(torch.equal(v, before[k]) for k, v in encoder.state_dict().items())
    assert encoder.embedding_dim == 3


def test_unnormalized_keeps_names_parameters_and_mode(encoder, x):
    network = encoder.unnormalized
    assert torch.equal(network(x), encoder.outputs(x))
    own, its = dict(encoder.named_parameters()), dict(network.named_parameters())
    assert own.keys() == its.keys()
    assert all(own[k] is its[k] for k in own)
    assert not network.training
    assert encoder.train().unnormalized.training


def test_curvature_of_the_unnormalized_head_is_the_head_curvature(encoder, x):
    labels = torch.tensor([0, 1, 0, 1, 2, 2, 0])
    options = {"distance": "euclidean", "margin": 1.0}
    network = sf.network_curvature(encoder.unnormalized, x, labels, **options)
    head = sf.dataset_curvature(
        encoder.features(x).detach(), encoder.outputs(x).detach(), labels, **options
    )
    torch.testing.assert_close(network["head.weight"], head[:, :5])


def test_zero_outputs_stay_zero_without_nan():
    z = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    u = on_sphere(z)
    assert u.tolist() == [[0, 0], [pytest.approx(0.6), pytest.approx(0.8)]]
    u.sum().backward()
    assert z.grad[0].tolist() == [1, 1]
    assert torch.isfinite(z.grad).all()


def test_a_head_that_is_not_linear_is_refused():
    with pytest.raises(sf.InputError, match=r"head must be a torch.nn.Linear; got Sequential"):
        Encoder(nn.Identity(), nn.Sequential(nn.Linear(2, 2)))


class Pair(nn.Module):
    def forward(self, x):
        return x, x


@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        (nn.Identity(), r"features \(2, 5\).*got \(2, 3, 4\)\. End it with pooling"),
        (nn.Flatten(), r"features \(2, 5\).*got \(2, 12\)\. Give the head that many inputs"),
        (Pair(), r"features \(2, 5\).*got tuple\. Wrap it"),
    ],
)
def test_backbones_that_do_not_fit_the_head_are_refused(backbone, message):
    encoder = Encoder(backbone, nn.Linear(5, 3))
    for use in (encoder, encoder.features, encoder.outputs, encoder.unnormalized):
        with pytest.raises(sf.InputError, match=message):
            use(torch.zeros(2, 3, 4))


def test_heads_of_another_width_are_refused(encoder, normal):
    with pytest.raises(sf.InputError, match=r"weights must have \d columns.*got shape \(3, 4\)"):
        encoder.with_head(normal(3, 4))
