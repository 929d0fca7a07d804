import pytest
import torch

import surefind as sf
from surefind.data.digits import load_digits


def test_digits_and_photographs():
    splits = load_digits(n_ood=50)
    assert {p: len(splits[p]) for p in splits} == {"train": 1198, "test": 599, "ood": 50}
    assert splits.train.labels.unique().tolist() == list(range(10))
    assert splits.train.read().shape[1:] == splits["ood"].read().shape[1:] == (1, 8, 8)
    assert splits.train.inputs.max() == 255
    assert splits["ood"].labels is None
    assert torch.equal(splits["ood"].read(), load_digits(n_ood=50)["ood"].read())
    assert not torch.equal(splits["ood"].read(), load_digits(n_ood=50, seed=1)["ood"].read())
    with pytest.raises(sf.InputError, match="n_ood must be a whole number of at least 1"):
        load_digits(n_ood=0)
