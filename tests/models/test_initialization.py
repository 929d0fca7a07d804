import pytest
import torch
from torch import nn

import surefind as sf
from surefind.models.networks import GeM, initialize, untouched_rng


def network():
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, groups=2),
        nn.BatchNorm2d(6),
        nn.ConvTranspose2d(6, 4, 2),
        nn.Conv1d(4, 4, 3, bias=False),
        nn.GroupNorm(2, 4),
        nn.LayerNorm(3),
        GeM(),
        nn.Linear(4, 5),
        nn.BatchNorm1d(5, affine=False),
    )


def same(a, b):
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_weights_are_those_that_pytorch_draws_from_the_seed():
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(5)
        expected = network()
    module = network()
    initialize(module, seeded(5))
    assert same(module, expected)


def test_weights_do_not_depend_on_the_memory_format():
    plain, last = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    initialize(plain, seeded(1))
    initialize(last, seeded(1))
    assert torch.equal(plain.weight, last.weight)
    assert last.weight.is_contiguous(memory_format=torch.channels_last)


def test_norm_layers_and_pooling_are_reset():
    module = network()
    with torch.no_grad():
        module[1].running_mean.fill_(3)
        module[8].running_var.fill_(3)
        module[5].weight.fill_(3)
        module[6].p.fill_(9)
    initialize(module, seeded(1))
    assert not module[1].running_mean.any()
    assert (module[8].running_var == 1).all()
    assert (module[5].weight == 1).all()
    assert module[6].p == 3


def test_the_global_generator_is_not_consumed():
    module, before = network(), torch.get_rng_state()
    initialize(module, seeded(1))
    assert torch.equal(torch.get_rng_state(), before)
    with untouched_rng():
        network()
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_global_generator_comes_back_after_an_error():
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError), untouched_rng():
        torch.rand(3).view(7)
    assert torch.equal(torch.get_rng_state(), before)


def test_layers_of_another_kind_are_refused_before_anything_changes():
    module = nn.Sequential(nn.Linear(2, 2), nn.Embedding(3, 2), nn.PReLU())
    before = module[0].weight.clone()
    with pytest.raises(sf.InputError, match="has parameters in Embedding, PReLU"):
        initialize(module, seeded(1))
    assert torch.equal(module[0].weight, before)
