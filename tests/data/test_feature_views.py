import numpy as np
import torch

import surefind as sf
from surefind.data.inputs import FeatureViews


def views(v=4, n=6):
    values = np.arange(v)[:, None, None] * 100.0 + np.arange(n)[:, None] + np.zeros(2)
    return FeatureViews(values.astype(np.float16), "key", "network", None)


def test_evaluation_reads_the_plain_view_and_training_an_augmented_one():
    data = sf.Dataset(views(), torch.arange(6) % 2)
    assert torch.equal(data.read()[:, 0], torch.arange(6.0))
    assert data.read().dtype == torch.float32
    drawn = [data.read(augment_seed=(0, epoch))[:, 0] for epoch in range(40)]
    for one in drawn:
        assert torch.equal(one % 100, torch.arange(6.0))
    seen = {int(x) // 100 for one in drawn for x in one}
    assert seen == {1, 2, 3}
    assert torch.equal(drawn[3], data.read(augment_seed=(0, 3))[:, 0])


def test_an_example_that_comes_twice_in_a_batch_has_a_view_each_time():
    rows = np.zeros(60, np.int64)
    found = views().read(rows, (0, 1))[:, 0]
    assert len(found.unique()) == 3


def test_without_augmented_views_there_is_the_plain_one():
    one = views(v=1)
    rows = np.arange(6)
    assert torch.equal(one.read(rows, (0, 1)), one.read(rows))


def test_selections_of_rows_nest_and_have_names_of_their_own():
    data = sf.Dataset(views(), torch.arange(6) % 2)
    part = data[torch.tensor([4, 1, 5])][1:]
    assert part.read()[:, 0].tolist() == [1, 5]
    assert len(part.inputs) == 2
    assert np.shares_memory(part.inputs.values, data.inputs.values)
    prints = {d.inputs.fingerprint() for d in (data, part, data[:2])}
    assert len(prints) == 3
    assert [len(x) for x in part.inputs] == [1, 1]
